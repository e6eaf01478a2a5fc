"""Tables of a report: arrivals and work of the ranks, durations of the steps, ends of the ranks."""

from dataclasses import dataclass

import numpy as np

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_records.events.event import Event
from lockstep_records.text.printable import printable
from lockstep_reports import nan_stats
from lockstep_reports.analysis.step_losses import Pauses, StepLoss, slow_columns, step_losses
from lockstep_reports.recording.align import Alignment
from lockstep_reports.recording.steps import Member, Steps
from lockstep_reports.search.score import Scores, last_share

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
    lag, sync = alignment.lag[:, columns], steps.sync[:, columns]
    share = last_share(scores.rank_margin[:, columns])
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
    pauses = Pauses(steps.ranks, {phase: steps.phases[phase] for phase in ("checkpoint", "eval")})
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
