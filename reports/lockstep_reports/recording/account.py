"""The account of a run: each second of a rank's steps has one owner, before anybody is judged.

``RULES`` is the whole division, a reason a row. What a rule needs and a recording lacks stays with
the owner that the rule would have taken it from, and ``missing`` says so.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

import numpy as np

from lockstep_catalogue.labels import OWN_WORK_PHASES
from lockstep_catalogue.limits import MIN_WAIT_RATIO
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Flags, Matrix, blocks_of_rows, is_zero, zeros
from lockstep_reports.recording.steps import Steps

PLANNED_PHASES = ("checkpoint", "eval")
HostCause = Literal["stopped", "collector", "queued"]
HELD = ("stopped", "collector")
"""Host causes in which nothing of the rank's own work goes on, so that they are measured whole."""
# What a rank usually takes: its lower quartile, so that three steps in four may be long.
USUAL_QUANTILE = 0.25
# A loader waits for files and other processes; in these phases a collective may wait for ranks.
MAY_WAIT = ("forward", "backward", "optimizer", "other")


class Rule(NamedTuple):
    """How the time of one host cause is found in a step.

    Attributes:
        source: matrix of ``Steps`` that measures it.
        in_sync: whether it counts in collectives, where it keeps the others waiting too.
        is_whole: whether all of it was own work; else only what is beyond the usual.
        reason: why it is so.
        missing: sentence for a recording that lacks it.
    """

    cause: HostCause
    source: str
    in_sync: bool
    is_whole: bool
    reason: str
    missing: str


RULES = (
    Rule(
        "stopped",
        "stopped",
        in_sync=True,
        is_whole=False,
        reason="A process that stands still works in no phase; in a collective all wait for it.",
        missing="Stops of processes were not recorded: they are in own work and in waits.",
    ),
    Rule(
        "collector",
        "collection",
        in_sync=False,
        is_whole=True,
        reason="The collector of garbage runs in Python, which a rank leaves to wait for others.",
        missing="Pauses of the garbage collector were not recorded by step: they are in own work.",
    ),
    Rule(
        "queued",
        "run_queue",
        in_sync=False,
        is_whole=False,
        reason="A wait for a core lengthens own work. No step has less work than the quickest rank"
        " usually: what is more fell into collectives, where the rank had nothing to do.",
        missing="Waits for a core were not recorded: they are in own work.",
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Account:
    """Seconds of each rank in each step by owner; their sum is the step.

    All are at least 0 and [ranks, steps], NaN where the rank left no row of the step.

    Attributes:
        own: work of the rank by phase, without what the host took.
        host: what the host took, by cause.
        planned: checkpoints and evaluations, by phase.
        waited: for other ranks, without the transfer itself.
        transfer: in collectives, what the rank that came last needed too.
        unknown: in no phase.
        missing: sentences on the owners that this recording cannot tell.
        queued: waits for a core outside collectives; None where they were not recorded.
        slept: own work in which the rank had no core and waited for none, in the same way.
        queued_ratio: waits for a core as a share of all recorded time.
    """

    own: Mapping[str, Matrix]
    host: Mapping[str, Matrix]
    planned: Mapping[str, Matrix]
    waited: Matrix
    transfer: Matrix
    unknown: Matrix
    missing: tuple[str, ...]
    queued: Matrix | None
    slept: Matrix | None
    queued_ratio: float

    @property
    def own_work(self) -> Matrix:
        """Own work of all phases: seconds, [ranks, steps]."""
        return total_of(self.own.values())

    def busy(self, rows: list[int]) -> Matrix:
        """Own work and what the host took: seconds, [some ranks, steps]."""
        return total_of(each[rows] for each in (*self.own.values(), *self.host.values()))

    @property
    def owners(self) -> Mapping[str, Matrix]:
        """What makes others wait, by the name of its owner: seconds, [ranks, steps] each."""
        return {**self.own, **self.host, **self.planned}


def total_of(parts: Iterable[Matrix]) -> Matrix:
    """Sum of some matrices [ranks, steps], at least one, which is not written to."""
    every = list(parts)
    first, *others = [part for part in every if not is_zero(part)] or every[:1]
    total = first.copy() if others else first
    for part in others:
        total += part
    return total


def divide(steps: Steps) -> Account:
    """The account of recorded steps, whatever they were read from."""
    phases, unknown = _fit(steps)
    own = {name: phases[name] for name in OWN_WORK_PHASES}
    planned = {name: phases[name] for name in PLANNED_PHASES}
    sources = {r.cause: each for r in RULES if (each := getattr(steps, r.source)) is not None}
    sync, host = phases["sync"], {str(c): zeros(each.shape) for c, each in sources.items()}
    usual = cache(lambda name: _usual(phases[name]))
    for rule in RULES:
        measured = sources.get(rule.cause)
        if measured is None or not np.any(measured > 0):
            continue
        taken, rest = _assign_seconds(measured, _room(steps, total_of(own.values()), rule))
        own = _take(own, usual, taken)
        if rule.in_sync:
            in_sync = np.minimum(rest, _longer_transfer(steps, sync))
            sync, taken = sync - in_sync, taken + in_sync
        host[rule.cause] = taken
    waited, transfer = _split_sync(steps, sync)
    if not steps.is_independent:
        hidden = _hidden_waits(steps, own, waited, (*planned.values(), *host.values(), unknown))
        if np.any(hidden > 0):
            for rows in blocks_of_rows(hidden):
                outside = np.minimum(hidden[rows], unknown[rows])
                waited[rows] += hidden[rows]
                unknown[rows] -= outside
                hidden[rows] -= outside
            own = _take(own, usual, hidden, MAY_WAIT)
    return Account(
        own=own,
        host=host,
        planned=planned,
        waited=waited,
        transfer=transfer,
        unknown=unknown,
        missing=tuple(rule.missing for rule in RULES if rule.cause not in sources),
        queued=steps.run_queue,
        slept=steps.blocked,
        queued_ratio=_queued_ratio(steps),
    )


def _room(steps: Steps, own: Matrix, rule: Rule) -> Matrix:
    """How much of own work may be of a host cause: seconds, [ranks, steps]."""
    least = 0.0 if rule.is_whole else _least_usual(own)
    # Who sleeps in own work runs nothing, stands in no queue and is not stopped.
    asleep = 0.0 if steps.blocked is None else np.nan_to_num(steps.blocked)
    return np.maximum(own - least - asleep, 0)


def _queued_ratio(steps: Steps) -> float:
    if steps.queued_ratio is not None:
        return steps.queued_ratio
    total = float(np.nansum(steps.seconds))
    return (
        0.0 if steps.run_queue is None or not total else float(np.nansum(steps.run_queue)) / total
    )


def _fit(steps: Steps) -> tuple[dict[str, Matrix], Matrix]:
    """The phases, at least 0 and together no longer than the step, and what no phase claims."""
    is_row = ~np.isnan(steps.seconds)
    phases = {
        name: values
        if (values >= 0).all()
        else np.where(is_row, np.maximum(np.nan_to_num(values), 0.0), np.nan)
        for name, values in steps.phases.items()
    }
    total = total_of(phases.values())
    if (total > steps.seconds).any():
        # Phases are written as rounded numbers.
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(total > steps.seconds, steps.seconds / total, 1.0)
        phases = {name: values * share for name, values in phases.items()}
        total = np.minimum(total, steps.seconds)
    return phases, steps.seconds - total


def _least_usual(own: Matrix) -> float:
    """What the quickest rank usually works in a step, in seconds."""
    return float(np.nan_to_num(nan_stats.lowest(_usual(own)[:, 0], axis=0)))


def _usual(values: Matrix) -> Matrix:
    """What each rank usually takes: seconds, [ranks, 1]."""
    return nan_stats.quantile(values, USUAL_QUANTILE, axis=1)[:, None]


def _assign_seconds(measured: Matrix, room: Matrix) -> tuple[Matrix, Matrix]:
    """What was measured, in the steps that have room for it, and what is left: [ranks, steps].

    What does not fit may have been noticed a step late.
    """
    room, measured = np.nan_to_num(room), np.maximum(np.nan_to_num(measured), 0.0)
    here = np.minimum(measured, room)
    late = np.minimum(np.pad(measured - here, ((0, 0), (0, 1)))[:, 1:], room - here)
    rest = measured - here - np.pad(late, ((0, 0), (1, 0)))[:, :-1]
    return here + late, np.maximum(rest, 0.0)


def _take(
    own: Mapping[str, Matrix],
    usual: Callable[[str], Matrix],
    seconds: Matrix,
    names: tuple[str, ...] = OWN_WORK_PHASES,
) -> dict[str, Matrix]:
    """Own work by phase without so many seconds [ranks, steps], of some phases.

    First from what a phase took longer than usual, then from all in proportion.
    """
    if not np.any(seconds > 0):
        return dict(own)
    changed = {name: own[name].copy() for name in names}
    for rows in blocks_of_rows(seconds):
        columns = np.flatnonzero((seconds[rows] > 0).any(axis=0))
        left = seconds[rows][:, columns]
        parts = {name: own[name][rows][:, columns] for name in names}
        longer = {name: np.maximum(parts[name] - usual(name)[rows], 0.0) for name in names}
        for weights in (longer, parts):
            total = total_of(weights.values())
            with np.errstate(divide="ignore", invalid="ignore"):
                share = np.nan_to_num(np.minimum(1.0, left / total))
            taken = {name: np.minimum(weights[name] * share, parts[name]) for name in names}
            parts.update({name: parts[name] - taken[name] for name in names})
            left = left - total_of(taken.values())
        for name in names:
            changed[name][rows][:, columns] = parts[name]
    return {**own, **changed}


def _split_sync(steps: Steps, sync: Matrix) -> tuple[Matrix, Matrix]:
    """Waits for other ranks, and what the transfer took even for the last: [ranks, steps] both."""
    took_part = steps.took_part
    if steps.is_independent or np.count_nonzero(took_part, axis=0).max(initial=0) <= 1:
        return sync * 0.0, sync
    shortest = _shortest(took_part, sync)
    # Without a copy a rank, where all took part.
    all_equal = np.broadcast_to(shortest, sync.shape)
    transfer = all_equal if took_part.all() else np.where(took_part, shortest, sync)
    return sync - transfer, transfer


def _shortest(took_part: Flags, sync: Matrix) -> Matrix:
    """The shortest synchronisation of the ranks that took part: seconds, [steps]."""
    shortest = np.full(sync.shape[1], np.inf, sync.dtype)
    for rows in blocks_of_rows(sync):
        waits = np.where(took_part[rows], sync[rows], np.inf)
        shortest = np.minimum(shortest, np.min(waits, axis=0))
    return shortest


def _longer_transfer(steps: Steps, sync: Matrix) -> Matrix:
    """By how much collectives took even the last rank longer than usual: seconds, [ranks, steps].

    Who stands still in a collective holds up all, the last one too; who does in its wait nobody.
    """
    took_part = steps.took_part
    shortest = np.where(took_part.any(axis=0), _shortest(took_part, sync), np.nan)
    longer = shortest - nan_stats.quantile(shortest, USUAL_QUANTILE)
    return np.where(took_part, np.maximum(np.nan_to_num(longer), 0.0), 0.0)


def _hidden_waits(
    steps: Steps, own: Mapping[str, Matrix], waited: Matrix, others: tuple[Matrix, ...]
) -> Matrix:
    """Waits for others that no phase tells from work: seconds, [ranks, steps].

    A rank that had no core, waited for none and was not stopped sleeps. In its loader that is work.
    Elsewhere, and in no phase, it waits for others as far as one of them worked so much longer and
    no recorded wait shows it: in all of its sleep where waits are not recorded, else beyond its
    usual sleep.

    ``others`` are planned work, what the host took, and time in no phase, in the same way.
    """
    *held, unknown = others
    # A few ranks at a time: what only leads to a number of each rank or step is never whole.
    blocks = list(blocks_of_rows(waited))
    if not any(np.any(_idle(steps, own, unknown, rows) > 0) for rows in blocks):
        return np.zeros_like(waited)
    longest = nan_stats.number(nan_stats.highest(nan_stats.median(waited, axis=1), axis=0)) or 0.0
    usually = longest >= MIN_WAIT_RATIO * (nan_stats.median_number(steps.seconds) or 0.0)

    def measure(rows: slice) -> tuple[Matrix, Matrix, Matrix]:
        """Idle time, other time, and the same without what a rank does for the next step."""
        idle = _idle(steps, own, unknown, rows)
        planned = [each[rows] for each in held]
        firm = total_of([*(each[rows] for each in own.values()), *planned, unknown[rows]]) - idle
        late = np.nan_to_num(total_of(planned[: len(PLANNED_PHASES)]))
        # What a rank does after its last collective is waited for in the next step.
        after = firm - late + np.pad(late, ((0, 0), (1, 0)))[:, :-1]
        return np.maximum(idle - _usual(idle), 0.0) if usually else idle, firm, after

    highest = np.full((2, waited.shape[1]), np.nan)
    for rows in blocks:
        for index, each in enumerate(measure(rows)[1:]):
            highest[index] = np.fmax(highest[index], np.fmax.reduce(each))
    hidden, most = np.empty_like(waited), highest.astype(waited.dtype)
    for rows in blocks:
        idle, *works = measure(rows)
        longer = np.fmax(*(high - each for high, each in zip(most, works, strict=True)))
        np.clip(np.nan_to_num(longer - waited[rows]), 0.0, np.nan_to_num(idle), out=hidden[rows])
    return hidden


def _idle(steps: Steps, own: Mapping[str, Matrix], unknown: Matrix, rows: slice) -> Matrix:
    """Time in no phase, and sleep that may be a wait: seconds, [some ranks, steps]."""
    if steps.blocked is None:
        return unknown[rows]
    sleep = np.maximum(np.nan_to_num(steps.blocked[rows]) - own["data"][rows], 0.0)
    return unknown[rows] + np.minimum(sleep, total_of(own[name][rows] for name in MAY_WAIT))
