"""Tables of a report: arrivals and work of the ranks, durations of the steps, ends of the ranks."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_outcomes.progress.missing import rank_words
from lockstep_records.events.event import Event
from lockstep_records.text.printable import printable
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Cells, Difference, Flags, Integers, Matrix
from lockstep_reports.chance import noise_limit
from lockstep_reports.recording.align import Alignment
from lockstep_reports.recording.steps import Member, Steps
from lockstep_reports.search.score import Scores, last_share
from lockstep_reports.wording import duration, plural

SLOW_RATIO = 1.2
_MIN_BURST, _BURST_GAP = 4, 2
_MIN_PERIODS, _PERIODIC_SHARE = 3, 0.8
_MAX_PERIODS = 256  # distances that are tried, the most frequent ones: it bounds the time
# A pause so long and of so many steps' time is a restart, or looks like one.
_RESTART_RATIO, _RESTART_SECONDS = 3.0, 30.0
_TALL_RATIOS = (24.0, 12.0, 6.0, _RESTART_RATIO)
_MAX_LISTED = 8
Kind = Literal["periodic", "burst", "restart", "single", "rest"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepLoss:
    """Slow steps that belong together.

    Attributes:
        kind: ``periodic``, ``burst`` (steps in succession), ``restart`` (a long pause, most likely
            a restart), ``single``, or ``rest``: all others together.
        first_step: as the job counts; of a recording without numbers its position.
        count: number of slow steps.
        period_steps: steps from one to the next of periodic ones; else None.
        lost_seconds: their time beyond the median.
        largest_ratio: the slowest of them to the median.
        phase: pause of some ranks that explains at least half of the time: planned, in the loader
            or a host cause; None where none does.
        ranks: that were in it for most of its time; empty without a phase.
    """

    kind: Kind
    first_step: int
    last_step: int
    count: int
    period_steps: int | None
    lost_seconds: float
    largest_ratio: float
    phase: str | None = None
    ranks: tuple[int, ...] = ()


class Pauses(NamedTuple):
    """Time of the ranks in pauses.

    Attributes:
        ranks: number of each rank [ranks].
        seconds: time in each pause, by its phase or host cause: seconds, [ranks, steps].
    """

    ranks: tuple[int, ...] = ()
    seconds: Mapping[str, Cells] = {}

    def cause(self, columns: list[int], lost_seconds: float) -> tuple[str | None, tuple[int, ...]]:
        """The pause that explains at least half of a loss, and the ranks that made it."""
        for phase, seconds in self.seconds.items():
            by_rank = np.nansum(seconds[:, columns], axis=1)
            longest = float(by_rank.max(initial=0.0))
            if longest >= lost_seconds / 2 > 0:
                rows = np.flatnonzero(by_rank >= longest / 2)
                return phase, tuple(self.ranks[row] for row in rows)
        return None, ()


_NO_PAUSES = Pauses()


class _Series(NamedTuple):
    seconds: Matrix
    numbers: Integers
    median: float
    pauses: Pauses

    def loss(self, kind: Kind, columns: list[int], period: int | None = None) -> StepLoss:
        """The slow steps of some columns."""
        seconds = self.seconds[columns]
        lost_seconds = float((seconds - self.median).sum())
        phase, ranks = self.pauses.cause(columns, lost_seconds)
        return StepLoss(
            kind=kind,
            first_step=int(self.numbers[min(columns)]),
            last_step=int(self.numbers[max(columns)]),
            count=len(columns),
            period_steps=period,
            lost_seconds=lost_seconds,
            largest_ratio=float(seconds.max()) / self.median,
            phase=phase,
            ranks=ranks,
        )


def slow_columns(seconds: Matrix) -> Flags:
    """Which steps are slow beyond the noise [steps], by their seconds; NaN where unknown."""
    median = nan_stats.median_number(seconds)
    if not median or median <= 0:
        return np.zeros(len(seconds), bool)
    limit = max(SLOW_RATIO * median, median + noise_limit(seconds[~np.isnan(seconds)]))
    slow: Flags = np.nan_to_num(seconds) > limit
    return slow


def step_losses(
    seconds: Matrix, numbers: Integers, pauses: Pauses = _NO_PAUSES
) -> tuple[StepLoss, ...]:
    """Groups of slow steps, the costliest first; what is not listed is summed as ``rest``.

    Seconds and ascending numbers are [steps]; pauses of the ranks may explain a loss.
    """
    columns = np.flatnonzero(slow_columns(seconds)).tolist()
    if not columns:
        return ()
    series = _Series(seconds, numbers, float(nan_stats.median(seconds)), pauses)
    groups = sorted(_groups(series, columns), key=lambda group: -group[0].lost_seconds)
    listed = tuple(loss for loss, _ in groups[:_MAX_LISTED])
    rest = [column for _, members in groups[_MAX_LISTED:] for column in members]
    return (*listed, series.loss("rest", rest)) if rest else listed


def _groups(series: _Series, columns: list[int]) -> list[tuple[StepLoss, list[int]]]:
    """Groups of slow steps with their columns."""
    groups: list[tuple[StepLoss, list[int]]] = []

    def take_periodic(candidates: list[int], remaining: list[int]) -> list[int]:
        periodic, period = _periodic(series.numbers, candidates)
        if periodic:
            groups.append((series.loss("periodic", periodic, period), periodic))
        return sorted({*remaining} - {*periodic})

    # Between two evaluations a noisy series has many steps that are a little slow: tall ones first.
    for ratio in _TALL_RATIOS:
        tall = [c for c in columns if series.seconds[c] >= ratio * series.median]
        columns = take_periodic(tall, columns)
    bursts, singles = _bursts(columns)
    groups += [(series.loss("burst", burst), burst) for burst in bursts]
    for column in take_periodic(singles, singles):
        single = series.loss("single", [column])
        is_long = single.largest_ratio >= _RESTART_RATIO
        # The first steps of any job are long: allocation, compilation, connections.
        is_first = column <= 1
        is_so_long = is_long and single.lost_seconds >= _RESTART_SECONDS
        is_restart = is_so_long and not is_first and single.phase is None
        groups.append((series.loss("restart" if is_restart else "single", [column]), [column]))
    return groups


def _bursts(columns: list[int]) -> tuple[list[list[int]], list[int]]:
    """Slow steps in succession, and all others."""
    runs: list[list[int]] = []
    for column in columns:
        if runs and column - runs[-1][-1] <= _BURST_GAP:
            runs[-1].append(column)
        else:
            runs.append([column])
    bursts = [run for run in runs if len(run) >= _MIN_BURST]
    return bursts, [column for run in runs if len(run) < _MIN_BURST for column in run]


def _periodic(numbers: Integers, columns: list[int]) -> tuple[list[int], int | None]:
    """The columns that come at equal distances, and the distance in steps; none and None without.

    A distance counts when slow steps stand at nearly all of its multiples, and are most of all.
    """
    best: tuple[list[int], int | None] = [], None
    steps = {int(numbers[column]): column for column in columns}
    ordered = np.array(sorted(steps), dtype=np.int64)
    distances = Counter(distance for distance in np.diff(ordered).tolist() if distance > 1)
    for period in sorted(period for period, _ in distances.most_common(_MAX_PERIODS)):
        phases, counts = np.unique(ordered % period, return_counts=True)
        for phase in phases[counts >= max(_MIN_PERIODS, len(best[0]) + 1)].tolist():
            hits = ordered[ordered % period == phase].tolist()
            expected = (hits[-1] - hits[0]) // period + 1
            # Of many slow steps some are as far apart by chance.
            is_most = len(hits) >= len(columns) / 2
            if is_most and len(hits) >= _PERIODIC_SHARE * expected and len(hits) > len(best[0]):
                best = [steps[step] for step in hits], period
    return best


def loss_sentence(loss: StepLoss) -> str:
    """One group of slow steps in a sentence, with the ranks and the pause that explain it."""
    sentence = _loss_words(loss)
    if loss.phase is None:
        return sentence
    action = _ACTIONS[loss.phase]
    return f"{sentence[:-1]}; {rank_words(loss.ranks)} {action} then."


_ACTIONS = {
    "checkpoint": "saved a checkpoint",
    "eval": "evaluated",
    "stopped": "stood still",
    "collector": "collected garbage",
    "queued": "waited for a core",
    "data": "loaded data",
}


def _loss_words(loss: StepLoss) -> str:
    cost = f"{duration(loss.lost_seconds)} longer than the median"
    largest = f"up to {loss.largest_ratio:.1f} times the median"
    if loss.kind == "periodic":
        return (
            f"Every {loss.period_steps:,} steps a slow one, {loss.count:,} from step "
            f"{loss.first_step:,} on: {cost}, {largest}."
        )
    if loss.kind == "burst":
        span = f"{loss.first_step:,} to {loss.last_step:,}"
        return f"Steps {span}, {loss.count:,} of them slow in succession: {cost}, {largest}."
    if loss.kind == "rest":
        return f"{plural(loss.count, 'other slow step')}: {cost} in all, {largest}."
    if loss.kind == "restart":
        return (
            f"Step {loss.first_step:,}: {cost}, {loss.largest_ratio:.1f} times the median; so long"
            " a pause is most likely a restart."
        )
    return f"Step {loss.first_step:,}: {cost}, {loss.largest_ratio:.2f} times the median."


MAX_SPIKES = 100

_MAX_OUTPUT_LINES, _MAX_LINE_CHARACTERS = 20, 400


@dataclass(frozen=True, kw_only=True, slots=True)
class RankSummary:
    """One rank over the steps that a table covers; medians in seconds, None where unknown.

    Attributes:
        last_share: share of the steps in which no other rank came later.
        lag_seconds: arrival after the earliest rank, on the common clock.
        lag_p95_seconds: the same, 95th percentile.
        lateness_seconds: how much less than the longest it synchronised, with no clock.
        phase_seconds: mean seconds per step by phase.
    """

    rank: int
    node: str
    last_share: float | None
    lag_seconds: float | None
    lag_p95_seconds: float | None
    lateness_seconds: float | None
    own_work_seconds: float | None
    sync_seconds: float | None
    phase_seconds: dict[str, float | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Spike:
    """A step beyond 1.2 times the median and the noise; ``index`` counts the steps from 0."""

    index: int
    ratio: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSummary:
    """Durations of the steps, with the 100 largest spikes at most.

    Means over several steps hide the tail: they have no spikes, and a p95 only where a histogram of
    durations exists, as exact as its buckets. ``losses`` holds the spikes by what they cost.
    """

    count: int
    first: int | None
    last: int | None
    median_seconds: float | None
    p95_seconds: float | None
    spikes: tuple[Spike, ...]
    losses: tuple[StepLoss, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """End of a rank by the launcher's event, and the last state of its page.

    Attributes:
        exit_code: None without an event; negative after a signal.
        first: it was the first of the attempt to fail; None without an event.
        phase: last phase that it entered; None without a page.
        exception: what ended it, with its place; None where no exception is recorded.
        last_output: last lines of its stderr, where it failed; None where none are kept.
    """

    rank: int
    exit_code: int | None
    signal: str | None
    first: bool | None
    phase: str | None
    last_step: int | None
    exception: str | None = None
    last_output: str | None = None


def summarize_ranks(
    steps: Steps, scores: Scores, alignment: Alignment, columns: slice
) -> tuple[RankSummary, ...]:
    """One line per rank over the steps of some columns, in the order of the ranks."""
    lag, sync = alignment.lag(columns), steps.sync[:, columns]
    share = last_share(scores.rank_margin, columns)
    lateness, own_work = scores.lateness[:, columns], scores.own_work[:, columns]
    phases = {
        phase: nan_stats.mean(steps.phases[phase][:, columns], axis=1) for phase in STEP_PHASES
    }
    medians = [nan_stats.median(each, axis=1) for each in (lag, lateness, own_work, sync)]
    lag_p95 = nan_stats.quantile(lag, 0.95, axis=1)
    number = nan_stats.number
    return tuple(
        RankSummary(
            rank=member.rank,
            node=member.node,
            last_share=number(share[row]),
            lag_seconds=number(medians[0][row]),
            lag_p95_seconds=number(lag_p95[row]),
            lateness_seconds=number(medians[1][row]),
            own_work_seconds=number(medians[2][row]),
            sync_seconds=number(medians[3][row]),
            phase_seconds={phase: number(mean[row]) for phase, mean in phases.items()},
        )
        for row, member in enumerate(steps.members)
    )


def summarize_steps(steps: Steps, scores: Scores) -> StepSummary:
    """Count, range, median, p95 and spikes of the steps' durations."""
    count, are_means = len(steps.numbers), steps.steps_per_column is not None
    median = nan_stats.number(scores.median_step_seconds)
    # A step that no rank recorded has no ratio and is not a spike.
    ratios = np.nan_to_num(scores.step_seconds / median) if median else np.zeros(count)
    # Stable: of equal spikes the earliest are listed.
    largest = np.argsort(-ratios, kind="stable")[:MAX_SPIKES]
    slow = slow_columns(scores.step_seconds)
    spikes = sorted(int(i) for i in largest if slow[i] and not are_means)
    account = scores.account
    data = account.own["data"]
    usual = nan_stats.median(data, axis=1)[:, None]
    longer = Difference(data, np.broadcast_to(usual, data.shape))
    pauses = Pauses(steps.ranks, {**account.planned, **account.host, "data": longer})
    return StepSummary(
        count=count if steps.weights is None else round(float(steps.weights.sum())),
        first=int(steps.numbers[0]) if count else None,
        last=int(steps.numbers[-1]) if count else None,
        median_seconds=median,
        p95_seconds=_p95(steps, scores),
        spikes=tuple(Spike(index=index, ratio=float(ratios[index])) for index in spikes),
        losses=() if are_means else step_losses(scores.step_seconds, steps.numbers, pauses),
    )


def _p95(steps: Steps, scores: Scores) -> float | None:
    if steps.steps_per_column is None:
        return nan_stats.quantile_number(scores.step_seconds, 0.95)
    # A quantile of means is not the quantile of the steps, so only a histogram can answer.
    return None if steps.durations is None else steps.durations.quantile(0.95)


def summarize_endings(steps: Steps, events: tuple[Event, ...]) -> tuple[Ending, ...]:
    """End of each rank of the attempt, by rank; a rank without a page has only its event."""
    fields_by_rank = {
        rank: event.fields
        for event in events
        if event.kind == "rank_ended"
        and event.attempt == steps.attempt
        and isinstance(rank := event.fields.get("rank"), int)
        # Anybody may write the file of events; a rank outside the world does not count.
        and 0 <= rank < steps.world_size
    }
    members = {member.rank: member for member in steps.members}
    return tuple(
        _ending(rank, members.get(rank), fields_by_rank.get(rank, {}))
        for rank in sorted({*fields_by_rank, *members})
    )


def _ending(rank: int, member: Member | None, fields: dict[str, object]) -> Ending:
    exit_code, signal, first = (fields.get(name) for name in ("exit_code", "signal", "first"))
    exception = fields.get("exception") or (member.exception if member else None)
    has_failed = exception is not None or exit_code not in {None, 0}
    return Ending(
        rank=rank,
        exit_code=exit_code if isinstance(exit_code, int) else None,
        signal=printable(signal) if isinstance(signal, str) else None,
        first=first if isinstance(first, bool) else None,
        phase=member.phase if member else None,
        last_step=member.last_step if member else None,
        exception=printable(exception) if isinstance(exception, str) else None,
        last_output=_last_lines(member.last_output) if member and has_failed else None,
    )


def _last_lines(output: str | None) -> str | None:
    """The end of an output, as much of it as a report has room for."""
    lines = (output or "").rstrip().splitlines()[-_MAX_OUTPUT_LINES:]
    return "\n".join(printable(line)[:_MAX_LINE_CHARACTERS] for line in lines) or None
