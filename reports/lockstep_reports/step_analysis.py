"""The analysis of recorded steps: alignment, scores, verdict, cost, in one frozen value."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lockstep_catalogue.vocabulary import OutcomeOrRunning
from lockstep_records.job_goodput import WholeJob
from lockstep_reports import nan_stats
from lockstep_reports.align import Alignment, align
from lockstep_reports.cost import Cost, Goodput, cost, goodput
from lockstep_reports.ends import NotFinite, Resume, end_fields, hang_now, not_finite, older_resume
from lockstep_reports.recording.collectives import CollectiveLog
from lockstep_reports.recording.operations import OperationTrace
from lockstep_reports.recording.recording import Attempt, Recording
from lockstep_reports.recording.steps import Steps
from lockstep_reports.score import Scores, score
from lockstep_reports.search.stretches import Thresholds
from lockstep_reports.standstills import Standstill, split_standstills
from lockstep_reports.summary import (
    Ending,
    RankSummary,
    StepSummary,
    summarize_endings,
    summarize_ranks,
    summarize_steps,
)
from lockstep_reports.times import Times, final_outcome, run_times
from lockstep_reports.verdict.dispatch import aligned_by, judge_recording
from lockstep_reports.verdict.sign import Sign
from lockstep_reports.verdict.verdict import Episode, Verdict
from lockstep_reports.whatif.replayed import Replayed, realigned, replay_trace


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StepAnalysis:
    """Everything that a report on steps shows.

    Attributes:
        ranks: every rank over the steps of the costliest episode; over all steps without episodes.
        ranks_over: first and last step that ``ranks`` covers; None without steps.
        others: the attempts that this report is not about.
        price_per_gpu_hour: price behind all amounts of money; None without a price.
        replayed: result of the replay of operation rows; None without such rows.
        collectives: collectives recorded by several ranks; None where none were recorded.
        operations: the operation rows themselves; None without.
        job: where the allocated time of all attempts went; None where no launcher told it.
        signs: trouble on the nodes of slow ranks while they were slow.
        end: fields of the attempt's end, by its launcher or its pages; empty where none is known.
        standstills: stretches without progress, which are no part of ``steps``.
        not_finite: steps whose loss was not finite; None without.
        resume: resume from an older checkpoint; None without.
        stacks: files of stacks by rank, written in a hang.
    """

    source_kind: str
    outcome: OutcomeOrRunning
    steps: Steps
    scores: Scores
    alignment: Alignment
    verdict: Verdict
    episodes: tuple[Episode, ...]
    summary: StepSummary
    ranks: tuple[RankSummary, ...]
    ranks_over: tuple[int, int] | tuple[None, None]
    cost: Cost
    goodput: Goodput
    times: Times
    endings: tuple[Ending, ...]
    others: tuple[Attempt, ...]
    price_per_gpu_hour: float | None
    replayed: Replayed | None = None
    collectives: CollectiveLog | None = None
    operations: OperationTrace | None = None
    job: WholeJob | None = None
    signs: tuple[Sign, ...] = ()
    end: Mapping[str, Any] = field(default_factory=dict)
    standstills: tuple[Standstill, ...] = ()
    not_finite: NotFinite | None = None
    resume: Resume | None = None
    stacks: tuple[tuple[int, Path], ...] = ()

    @property
    def covered_seconds(self) -> float:
        """Wall time of the judged steps."""
        return float(np.nansum(self.steps.over_all(self.scores.job_seconds)))

    @property
    def world_size(self) -> int:
        """Number of ranks of the whole job."""
        return self.steps.world_size

    @property
    def costliest_episode(self) -> Episode | None:
        """The episode with the largest loss, of those that accuse where any do; None without."""
        return _costliest(self.episodes)

    @property
    def accused_episode(self) -> Episode | None:
        """The costliest episode in which somebody was slow; None where hosts were busy instead."""
        costliest = self.costliest_episode
        return None if costliest is None or costliest.busy_host else costliest

    @property
    def accused_lost_seconds(self) -> float:
        """Wall time that was lost to whom the verdict accuses."""
        return sum(episode.lost_seconds for episode in self.episodes if not episode.busy_host)

    @property
    def accused_lost_ratio(self) -> float | None:
        """The same as a share of the run; None without steps."""
        covered = self.covered_seconds
        return self.accused_lost_seconds / covered if covered > 0 else None

    def wall_clock_at(self, index: int) -> float | None:
        """Wall clock in seconds at which the first rank began the step of a column."""
        return nan_stats.number(nan_stats.quantile(self.alignment.start[:, index], 0))

    def episode_span(self, episode: Episode) -> tuple[float | None, float | None]:
        """Wall clock in seconds of an episode's begin and end; None where unknown."""
        last = episode.columns.stop - 1
        # The last rank's end, where the begin is that of the first rank.
        end = self.alignment.start[:, last] + self.steps.seconds[:, last]
        begin = self.wall_clock_at(episode.columns.start)
        return begin, nan_stats.number(nan_stats.quantile(end, 1))

    def lost_step_ratio(self, episode: Episode) -> float | None:
        """Mean loss of an episode's steps as a share of their mean duration; None without time."""
        # The loss sums over all steps of a column, and so must the duration.
        covered = self.steps.over_all(self.scores.job_seconds)
        seconds = float(np.nansum(covered[episode.columns]))
        return episode.lost_seconds / seconds if seconds > 0 else None


def analyse_recording(
    recording: Recording,
    *,
    now_seconds: float,
    thresholds: Thresholds | None = None,
    price_per_gpu_hour: float | None = None,
) -> StepAnalysis:
    """Aligns, scores and judges a recording.

    Args:
        recording: what a reader returned.
        now_seconds: wall clock, to tell a running job from one that fell silent.
        thresholds: limits above which lateness counts; the defaults when left out.
        price_per_gpu_hour: price of one GPU, in any currency.
    """
    end = end_fields(recording)
    outcome = final_outcome(recording, end, now_seconds)
    all_steps, is_over = recording.steps, outcome != "running"
    recording, standstills = split_standstills(
        recording, now_seconds, hang_now(recording, now_seconds), is_over=is_over
    )
    analysis = _analyse(recording, outcome, thresholds, price_per_gpu_hour)
    return replace(
        analysis,
        goodput=goodput(recording.steps, analysis.episodes, standstills),
        end=end,
        standstills=standstills,
        not_finite=not_finite(all_steps),
        resume=older_resume(recording),
        stacks=_stacks(recording) if standstills else (),
    )


def _analyse(
    recording: Recording,
    outcome: OutcomeOrRunning,
    thresholds: Thresholds | None,
    price_per_gpu_hour: float | None,
) -> StepAnalysis:
    """The analysis of steps in which nothing stood still."""
    steps, scores = recording.steps, score(recording.steps, own_times=recording.own_times)
    replayed, verdict, episodes = _judge(recording, scores, thresholds)
    alignment = realigned(aligned_by(align(steps), recording.collectives), replayed)
    columns = _covered_columns(steps, episodes)
    return StepAnalysis(
        source_kind=recording.source_kind,
        outcome=outcome,
        steps=steps,
        scores=scores,
        alignment=alignment,
        verdict=verdict,
        episodes=episodes,
        summary=_summary(recording, scores),
        ranks=summarize_ranks(steps, scores, alignment, columns),
        ranks_over=_step_numbers(steps, columns),
        cost=cost(steps, scores, episodes, price_per_gpu_hour),
        goodput=goodput(steps, episodes),
        times=run_times(recording, alignment),
        endings=summarize_endings(steps, recording.events),
        others=tuple(a for a in recording.attempts if a.number != steps.attempt),
        price_per_gpu_hour=price_per_gpu_hour,
        replayed=replayed,
        collectives=recording.collectives,
        operations=recording.operations,
    )


def _stacks(recording: Recording) -> tuple[tuple[int, Path], ...]:
    """Files of stacks of the attempt by rank, those that are empty left out."""
    folder = recording.path / str(recording.steps.attempt)
    pages = [(m.rank, folder / f"rank-{m.rank:05d}.stacks") for m in recording.steps.members]
    return tuple((r, path) for r, path in pages if path.is_file() and path.stat().st_size > 0)


def _judge(
    recording: Recording, scores: Scores, thresholds: Thresholds | None
) -> tuple[Replayed | None, Verdict, tuple[Episode, ...]]:
    """Judges by a replay where operation rows exist, otherwise by the durations of the steps."""
    # A replay knows what each operation waited for, so it names stages and single operations.
    trace = recording.operations
    if trace is not None:
        replayed = replay_trace(trace)
        return replayed, replayed.verdict, replayed.episodes
    verdict, episodes = judge_recording(recording, scores, thresholds)
    return None, verdict, tuple(_scale_loss(recording.steps, episode) for episode in episodes)


def _summary(recording: Recording, scores: Scores) -> StepSummary:
    summary = summarize_steps(recording.steps, scores)
    # Between collectives lies whatever the job did then, so none of them is a slow step.
    return summary if recording.collectives is None else replace(summary, losses=())


def _scale_loss(steps: Steps, episode: Episode) -> Episode:
    """The episode with the loss of every step, where a column stands for several steps."""
    if steps.stands_for is None:
        return episode
    return replace(episode, lost_by_step=episode.lost_by_step * steps.stands_for[episode.columns])


def _costliest(episodes: tuple[Episode, ...]) -> Episode | None:
    return max(episodes, key=lambda e: (not e.busy_host, e.lost_seconds), default=None)


def _covered_columns(steps: Steps, episodes: tuple[Episode, ...]) -> slice:
    """Columns that the table of ranks covers: the costliest episode's, or all."""
    costliest = _costliest(episodes)
    # Over a whole run a late episode of few steps vanishes in the median, so the table narrows.
    return costliest.columns if costliest else slice(0, len(steps.numbers))


def _step_numbers(steps: Steps, columns: slice) -> tuple[int, int] | tuple[None, None]:
    if not len(steps.numbers):
        return None, None
    return int(steps.numbers[columns.start]), int(steps.numbers[columns.stop - 1])
