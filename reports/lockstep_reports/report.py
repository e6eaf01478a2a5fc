"""The report: one frozen value made from a recording, and the same as plain JSON."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from lockstep_reports import cost as costs
from lockstep_reports import nan_stats
from lockstep_reports import times as clocks
from lockstep_reports.align import Alignment, align
from lockstep_reports.recording.collectives import CollectiveLog
from lockstep_reports.recording.operations import OperationTrace
from lockstep_reports.recording.recording import Attempt, Recording
from lockstep_reports.recording.steps import Steps
from lockstep_reports.score import Scores, score
from lockstep_reports.search.episodes import Thresholds
from lockstep_reports.summary import (
    Ending,
    RankLine,
    StepSummary,
    endings,
    rank_lines,
    step_summary,
)
from lockstep_reports.verdict.dispatch import aligned_by, collectives_json, judge_recording
from lockstep_reports.verdict.verdict import Episode, Verdict
from lockstep_reports.whatif.payload import what_if_json
from lockstep_reports.whatif.replayed import Replayed, realigned, replay_trace

SCHEMA = 1


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Report:
    """Everything that the pages of a report tell.

    Attributes:
        ranks: every rank over the steps of the dearest episode, or over all steps without one.
        ranks_over: first and last step that ``ranks`` covers; None without steps.
        others: the attempts that this report is not about.
        price_per_gpu_hour: what money was counted with; None without a price.
        replayed: what a replay of operation rows says; None where there are none.
        collectives: collectives seen by several ranks; None where none were recorded.
        operations: the operation rows themselves; None without.
    """

    source_kind: str
    outcome: str
    steps: Steps
    scores: Scores
    alignment: Alignment
    verdict: Verdict
    episodes: tuple[Episode, ...]
    summary: StepSummary
    ranks: tuple[RankLine, ...]
    ranks_over: tuple[int, int] | tuple[None, None]
    cost: costs.Cost
    goodput: costs.Goodput
    times: clocks.Times
    endings: tuple[Ending, ...]
    others: tuple[Attempt, ...]
    price_per_gpu_hour: float | None
    replayed: Replayed | None = None
    collectives: CollectiveLog | None = None
    operations: OperationTrace | None = None

    @property
    def world_size(self) -> int:
        """Ranks of the whole job."""
        return self.steps.world_size

    @property
    def worst(self) -> Episode | None:
        """The episode that cost most."""
        return max(self.episodes, key=lambda episode: episode.lost_seconds, default=None)

    def wall(self, place: int) -> float | None:
        """Wall clock at which the first rank began the step at a place."""
        return nan_stats.number(nan_stats.quantile(self.alignment.start[:, place], 0))

    def span(self, episode: Episode) -> tuple[float | None, float | None]:
        """Wall clock of an episode's beginning and end."""
        last = episode.places.stop - 1
        end = self.alignment.start[:, last] + self.steps.seconds[:, last]
        return self.wall(episode.places.start), nan_stats.number(nan_stats.quantile(end, 1))


def make_report(
    recording: Recording,
    *,
    now_seconds: float,
    thresholds: Thresholds | None = None,
    price_per_gpu_hour: float | None = None,
) -> Report:
    """Aligns, scores and judges a recording.

    Args:
        recording: what was read.
        now_seconds: wall clock, to tell a running job from one that fell silent.
        thresholds: when lateness counts; the defaults when left out.
        price_per_gpu_hour: of one GPU.
    """
    steps, scores = recording.steps, score(recording.steps)
    replayed, verdict, episodes = _judged(recording, scores, thresholds)
    alignment = realigned(aligned_by(align(steps), recording.collectives), replayed)
    places = _places(steps, episodes)
    return Report(
        source_kind=recording.source_kind,
        outcome=clocks.outcome(recording, now_seconds),
        steps=steps,
        scores=scores,
        alignment=alignment,
        verdict=verdict,
        episodes=episodes,
        summary=step_summary(steps, scores),
        ranks=rank_lines(steps, scores, alignment, places),
        ranks_over=_span_of(steps, places),
        cost=costs.cost(steps, scores, episodes, price_per_gpu_hour),
        goodput=costs.goodput(steps, episodes),
        times=clocks.times(recording, alignment),
        endings=endings(steps, recording.events),
        others=tuple(a for a in recording.attempts if a.number != steps.attempt),
        price_per_gpu_hour=price_per_gpu_hour,
        replayed=replayed,
        collectives=recording.collectives,
        operations=recording.operations,
    )


def _judged(
    recording: Recording, scores: Scores, thresholds: Thresholds | None
) -> tuple[Replayed | None, Verdict, tuple[Episode, ...]]:
    """By a replay where there are operation rows, else by what the steps tell."""
    trace = recording.operations
    if trace is not None:
        replayed = replay_trace(trace)
        return replayed, replayed.verdict, replayed.episodes
    verdict, episodes = judge_recording(recording, scores, thresholds)
    return None, verdict, tuple(_over_all(recording.steps, episode) for episode in episodes)


def _over_all(steps: Steps, episode: Episode) -> Episode:
    """The episode with the loss of every step, where columns stand for several."""
    if steps.stands_for is None:
        return episode
    return replace(episode, lost_by_step=episode.lost_by_step * steps.stands_for[episode.places])


def _places(steps: Steps, episodes: tuple[Episode, ...]) -> slice:
    """Steps that the table of ranks covers: the dearest episode's, or all."""
    worst = max(episodes, key=lambda episode: episode.lost_seconds, default=None)
    return worst.places if worst else slice(0, len(steps.numbers))


def as_json(report: Report) -> dict[str, Any]:
    """The report as plain values; what is unknown is None."""
    steps = report.steps
    return {
        "schema": SCHEMA,
        "source": {"kind": report.source_kind},
        "job_id": steps.job_id,
        "cluster": steps.cluster,
        "project": steps.project,
        "attempt": steps.attempt,
        "attempts": [asdict(attempt) for attempt in report.others],
        "world_size": steps.world_size,
        "missing_ranks": list(steps.missing_ranks),
        "outcome": report.outcome,
        "verdict": asdict(report.verdict),
        "episodes": [_episode_json(report, episode) for episode in report.episodes],
        "steps": asdict(report.summary),
        **asdict(report.times),
        **asdict(report.cost),
        "price_per_gpu_hour": report.price_per_gpu_hour,
        "causes": [
            asdict(cause) for cause in costs.causes(report.goodput, report.price_per_gpu_hour)
        ],
        "goodput": {**report.goodput.seconds, "ratio": report.goodput.ratio},
        "ranks": [asdict(line) for line in report.ranks],
        "ranks_over": list(report.ranks_over),
        "endings": [asdict(ending) for ending in report.endings],
        "alignment": {
            "offsets": report.alignment.offsets,
            "drifts": report.alignment.drifts,
            "residual_seconds": report.alignment.residual_seconds,
            "residual_p95_seconds": report.alignment.residual_p95_seconds,
        },
        "collectives": collectives_json(report.collectives),
        "what_if": None if report.replayed is None else what_if_json(report.replayed, report),
        "notes": list(steps.notes),
    }


def _span_of(steps: Steps, places: slice) -> tuple[int, int] | tuple[None, None]:
    if not len(steps.numbers):
        return None, None
    return int(steps.numbers[places.start]), int(steps.numbers[places.stop - 1])


def _episode_json(report: Report, episode: Episode) -> dict[str, Any]:
    told = asdict(episode)
    del told["places"], told["lost_by_step"], told["group_is_node"]
    start, end = report.span(episode)
    return {
        **told,
        "start_time": start,
        "end_time": end,
        "lost_seconds": episode.lost_seconds,
        "lost_ratio": lost_step_ratio(report, episode),
    }


def lost_step_ratio(report: Report, episode: Episode) -> float | None:
    """What an episode's mean step lost, as a share of that step's duration."""
    covered = report.steps.over_all(report.scores.step_seconds)
    seconds = float(np.nansum(covered[episode.places]))
    return episode.lost_seconds / seconds if seconds > 0 else None
