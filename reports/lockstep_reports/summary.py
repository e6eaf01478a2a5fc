"""Tables of a report: every rank's arrivals and work, the steps as a whole, how the ranks ended."""

from dataclasses import dataclass

import numpy as np

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_records.events import Event
from lockstep_reports import nan_stats
from lockstep_reports.align import Alignment
from lockstep_reports.arrays import Matrix
from lockstep_reports.recording.steps import Member, Steps
from lockstep_reports.score import Scores, last_share
from lockstep_reports.wording import printable

_SPIKE_RATIO = 1.2
_MAX_SPIKES = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class RankLine:
    """One rank over the steps that a table covers; medians in seconds, None where unknown.

    Attributes:
        last_share: share of the steps in which no other rank came later.
        lag_seconds: arrival after the earliest rank, on the common clock.
        lag_p95_seconds: the same, 95th percentile.
        lateness_seconds: how much less than the longest it synchronised, with no clock.
        phase_seconds: mean seconds a step by phase.
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
    """A step over 1.2 times the median; ``index`` counts the recorded steps from 0."""

    index: int
    ratio: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSummary:
    """Durations of the steps; at most 100 spikes, the biggest ones.

    From means over several steps the tail cannot be told: no spikes, and a p95 only where counts of
    steps by duration stand beside them, as exact as their buckets.
    """

    count: int
    first: int | None
    last: int | None
    median_seconds: float | None
    p95_seconds: float | None
    spikes: tuple[Spike, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How a rank ended, by the launcher's event where there is one; and what its page last told.

    Attributes:
        exit_code: None when nobody has told; negative after a signal.
        first: it was the first of the attempt to fail; None when nobody has told.
        phase: phase of its last mark; None without a page.
    """

    rank: int
    exit_code: int | None
    signal: str | None
    first: bool | None
    phase: str | None
    last_step: int | None


def rank_lines(
    steps: Steps, scores: Scores, alignment: Alignment, places: slice
) -> tuple[RankLine, ...]:
    """A line for every rank over some of the steps, by rank."""
    lag, sync = alignment.lag[:, places], steps.sync[:, places]
    share = last_share(scores.ranks.margin[:, places])
    lateness, own = scores.lateness[:, places], scores.own_work[:, places]
    phases = {
        phase: nan_stats.mean(steps.phases[phase][:, places], axis=1) for phase in STEP_PHASES
    }

    def middle(values: Matrix, row: int) -> float | None:
        return nan_stats.number(nan_stats.median(values[row]))

    return tuple(
        RankLine(
            rank=member.rank,
            node=member.node,
            last_share=nan_stats.number(share[row]),
            lag_seconds=middle(lag, row),
            lag_p95_seconds=nan_stats.number(nan_stats.quantile(lag[row], 0.95)),
            lateness_seconds=middle(lateness, row),
            own_work_seconds=middle(own, row),
            sync_seconds=middle(sync, row),
            phase_seconds={phase: nan_stats.number(mean[row]) for phase, mean in phases.items()},
        )
        for row, member in enumerate(steps.members)
    )


def step_summary(steps: Steps, scores: Scores) -> StepSummary:
    """How long the steps took."""
    count, coarse = len(steps.numbers), steps.stands_for is not None
    median = nan_stats.number(scores.median_step_seconds)
    ratios = np.nan_to_num(scores.step_seconds / median) if median else np.zeros(count)
    biggest = np.argsort(-ratios, kind="stable")[:_MAX_SPIKES]
    spikes = sorted(int(i) for i in biggest if ratios[i] > _SPIKE_RATIO and not coarse)
    return StepSummary(
        count=count if steps.stands_for is None else round(float(steps.stands_for.sum())),
        first=int(steps.numbers[0]) if count else None,
        last=int(steps.numbers[-1]) if count else None,
        median_seconds=median,
        p95_seconds=_p95(steps, scores),
        spikes=tuple(Spike(index=index, ratio=float(ratios[index])) for index in spikes),
    )


def _p95(steps: Steps, scores: Scores) -> float | None:
    if steps.stands_for is None:
        return nan_stats.number(nan_stats.quantile(scores.step_seconds, 0.95))
    return None if steps.durations is None else steps.durations.quantile(0.95)


def endings(steps: Steps, events: tuple[Event, ...]) -> tuple[Ending, ...]:
    """How each rank of the attempt ended, by rank; ranks without a page have only their event."""
    told = {
        rank: event.fields
        for event in events
        if event.kind == "rank_ended"
        and event.attempt == steps.attempt
        and isinstance(rank := event.fields.get("rank"), int)
        and 0 <= rank < steps.world_size
    }
    members = {member.rank: member for member in steps.members}
    return tuple(
        _ending(rank, members.get(rank), told.get(rank, {})) for rank in sorted({*told, *members})
    )


def _ending(rank: int, member: Member | None, fields: dict[str, object]) -> Ending:
    exit_code, signal, first = (fields.get(name) for name in ("exit_code", "signal", "first"))
    return Ending(
        rank=rank,
        exit_code=exit_code if isinstance(exit_code, int) else None,
        signal=printable(signal) if isinstance(signal, str) else None,
        first=first if isinstance(first, bool) else None,
        phase=member.phase if member else None,
        last_step=member.last_step if member else None,
    )
