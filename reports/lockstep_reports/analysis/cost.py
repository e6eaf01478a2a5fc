"""The cost of waiting, and the goodput statement: states that sum to the time of all ranks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lockstep_catalogue.vocabulary import GOODPUT_STATES, PHASE_STATES
from lockstep_reports import nan_stats
from lockstep_reports.analysis.ends import Standstill
from lockstep_reports.arrays import blocks_of_rows
from lockstep_reports.recording.account import Account, total_of
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.score import Scores
from lockstep_reports.verdict.losses import Loss

SECONDS_PER_HOUR = 3600.0
# The other states need more than the step rows of one attempt.
_WHOLE_JOB_STATES = frozenset({"restore", "rework", "recovery", "idle", "held_after_end"})
STATES = tuple(state for state in GOODPUT_STATES if state not in _WHOLE_JOB_STATES)
"""The states that step rows show, in the order of the catalogue."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What ranks waited for others.

    Attributes:
        lost_seconds: wall time that the job lost.
        lost_ratio: the same as a share of the covered time; None when none is covered.
        lost_gpu_seconds: lost wall time x world size: all ranks wait for the late one.
        lost_money: in the currency of the price; None without a price.
    """

    lost_seconds: float
    lost_ratio: float | None
    lost_gpu_seconds: float
    lost_money: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Goodput:
    """Where the time of all ranks went between their first and last recorded step.

    Attributes:
        seconds: by state, summed over the ranks; the states exclude each other.
        covered_seconds: sum of the states.
        ratio: productive share of it; None when nothing is covered.
    """

    seconds: dict[str, float]
    covered_seconds: float
    ratio: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """GPU time of one state, its share of all covered time, and its price; None without a price."""

    cause: str
    gpu_hours: float
    ratio: float
    money: float | None


def cost(
    steps: Steps, scores: Scores, losses: Sequence[Loss], price_per_gpu_hour: float | None = None
) -> Cost:
    """What the losses cost the whole job."""
    lost, covered = sum(loss.lost_seconds for loss in losses), scores.covered_seconds
    # Ranks without a readable page waited too.
    gpu_seconds = lost * steps.world_size
    money = None if price_per_gpu_hour is None else gpu_seconds * price_per_gpu_hour
    return Cost(
        lost_seconds=lost,
        lost_ratio=lost / covered if covered > 0 else None,
        lost_gpu_seconds=gpu_seconds,
        lost_money=None if money is None else money / SECONDS_PER_HOUR,
    )


def goodput(
    steps: Steps, account: Account, losses: Sequence[Loss], standstills: Sequence[Standstill] = ()
) -> Goodput:
    """Seconds of all ranks by state, by the account; what the host took is host_bound.

    Lost time is that of all ranks: the others wait, which is moved from communication to
    straggler_wait, and so is what the late rank took longer, from the state of its cause. So
    straggler_wait is ``Cost.lost_gpu_seconds`` of the ranks that were read. Time between rows, and
    time that no phase claims, is unknown. Start-up runs from the creation of each rank's page to
    its first recorded step. Standstills are lost time of all ranks, of which the steps hold
    nothing.
    """
    seconds: dict[str, float] = dict.fromkeys(STATES, 0.0)
    for owner, values in account.owners.items():
        seconds[_state_of(owner)] += float(np.nansum(steps.sum_over_columns(values)))
    for values in (account.waited, account.transfer):
        seconds["communication"] += float(np.nansum(steps.sum_over_columns(values)))
    if not steps.has_phases:
        seconds["productive"] += seconds.pop("other")
        seconds["other"] = 0.0
    _move_host_bound(steps, account, seconds)
    for loss in losses:
        _move_loss(loss, len(steps.members), seconds)
    stood = {
        is_final: len(steps.members) * sum(s.seconds for s in standstills if s.is_final == is_final)
        for is_final in (False, True)
    }
    seconds["hang"] = stood[False]
    seconds["unknown"] = max(0.0, _first_to_last_seconds(steps) - sum(seconds.values()))
    # After unknown: start-up lies before the first row, outside that span.
    seconds["startup"] = _startup_seconds(steps)
    # After the last step, as start-up is before the first.
    seconds["hang"] += stood[True]
    covered = sum(seconds.values())
    return Goodput(
        seconds=seconds,
        covered_seconds=covered,
        ratio=seconds["productive"] / covered if covered > 0 else None,
    )


def _state_of(owner: str | None) -> str:
    """The state of the time of an owner; of what nothing explains the work itself."""
    if owner is None:
        return "productive"
    return PHASE_STATES.get(owner, "host_bound")


def _move_loss(loss: Loss, num_ranks: int, seconds: dict[str, float]) -> None:
    """Moves a loss to straggler_wait; the states sum to the covered time, so from what they hold.

    Waits in an unmarked phase are no communication, and come out of the work that hides them.
    """
    waits = loss.lost_seconds * (num_ranks - loss.num_late)
    parts = [("communication", waits), (_state_of(loss.cause), loss.lost_seconds * loss.num_late)]
    parts += [("communication", loss.lost_seconds * num_ranks)]
    parts += [(state, num_ranks * loss.lost_seconds) for state in ("productive", "other")]
    missing = num_ranks * loss.lost_seconds
    for state, most in parts:
        moved = min(most, missing, seconds[state])
        seconds[state] -= moved
        seconds["straggler_wait"] += moved
        missing -= moved


def _move_host_bound(steps: Steps, account: Account, seconds: dict[str, float]) -> None:
    """Moves time in which a device waited for the host out of other, the rest out of the work."""
    if steps.host_bound is None:
        return
    held_up = np.nan_to_num(steps.host_bound)
    # What the host took from the process is host-bound already.
    if account.host:
        held_up = np.maximum(held_up - np.nan_to_num(total_of(account.host.values())), 0.0)
    # A row has no phases of it. After the optimizer nothing is launched: what lasts there is that.
    in_other = np.minimum(held_up, np.nan_to_num(steps.phases["other"]))
    from_other = min(float(steps.sum_over_columns(in_other).sum()), seconds["other"])
    from_work = min(
        float(steps.sum_over_columns(held_up).sum()) - from_other, seconds["productive"]
    )
    seconds["other"] -= from_other
    seconds["productive"] -= from_work
    seconds["host_bound"] += from_other + from_work


def causes(statement: Goodput, price_per_gpu_hour: float | None) -> tuple[Cause, ...]:
    """Cost of each state but the productive one, costliest first; states without time left out."""
    spent = [(state, seconds) for state, seconds in statement.seconds.items() if seconds > 0]
    return tuple(
        Cause(
            cause=state,
            gpu_hours=seconds / SECONDS_PER_HOUR,
            ratio=seconds / statement.covered_seconds,
            money=None
            if price_per_gpu_hour is None
            else seconds / SECONDS_PER_HOUR * price_per_gpu_hour,
        )
        for state, seconds in sorted(spent, key=lambda pair: -pair[1])
        if state != "productive"
    )


def _startup_seconds(steps: Steps) -> float:
    first = nan_stats.lowest(steps.start, axis=1)
    created = np.array([member.page_created_seconds or np.nan for member in steps.members])
    # A window, or a ring that has wrapped, does not begin with the first step.
    has_first_step = len(steps.numbers) > 0 and steps.numbers[0] <= 1
    return float(np.nansum(np.maximum(first - created, 0.0))) if has_first_step else 0.0


def _first_to_last_seconds(steps: Steps) -> float:
    """From the begin of the first to the end of the last recorded step, summed over the ranks."""
    begin, ends = nan_stats.lowest(steps.start, axis=1), [np.empty(0)]
    for rows in blocks_of_rows(steps.seconds):
        seconds = steps.sum_over_columns(steps.seconds[rows])
        ends.append(nan_stats.highest(steps.start[rows] + seconds, axis=1))
    return float(np.nansum(np.concatenate(ends) - begin))
