"""The analysis of recorded steps: alignment, scores, verdict, cost, in one frozen value."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from lockstep_catalogue.vocabulary import OutcomeOrRunning
from lockstep_outcomes.prices.price import Price
from lockstep_outcomes.progress.goodput import WholeJob, whole_job
from lockstep_reports import nan_stats
from lockstep_reports.analysis import ends
from lockstep_reports.analysis import summary as summaries
from lockstep_reports.analysis.cost import Cost, Goodput, cost, goodput
from lockstep_reports.analysis.ends import Standstill, split_standstills
from lockstep_reports.recording.align import Alignment, align, align_by_collectives
from lockstep_reports.recording.recording import Attempt, Recording
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.score import Scores, score
from lockstep_reports.verdict.judge import Judgement, judge_recording
from lockstep_reports.verdict.losses import Loss, list_episode_losses
from lockstep_reports.verdict.verdict import Episode, Verdict
from lockstep_reports.whatif.verdict import Replayed, realign, replay_trace

Span = tuple[float | None, float | None]
"""Begin and end on the wall clock: seconds since the epoch; None where unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals:
    """Sums of the account over all ranks and steps.

    Attributes:
        host_seconds: what the host took, by cause.
        transfer_seconds: in collectives, what the rank that came last needed too.
        missing: sentences on the owners that the recording cannot tell.
    """

    host_seconds: Mapping[str, float]
    transfer_seconds: float
    missing: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StepAnalysis:
    """Everything that a report on steps shows; None where the recording has nothing of it.

    Attributes:
        recording: what was read, without the steps that stood still.
        spans: when each episode was, on the common clock [episodes].
        losses: the lost time by its owners, costliest first.
        ranks: every rank over the steps of the costliest episode; over all steps without episodes.
        ranks_over: first and last step that ``ranks`` covers.
        price: behind all amounts of money.
        replayed: result of the replay of operation rows.
        job: where the allocated time of all attempts went, as launchers reported it.
        standstills: stretches without progress, which are no part of ``steps``.
        not_finite: steps whose loss was not finite.
        resume: from an older checkpoint.
    """

    recording: Recording
    outcome: OutcomeOrRunning
    scores: Scores
    alignment: Alignment
    verdict: Verdict
    episodes: tuple[Episode, ...]
    spans: tuple[Span, ...]
    losses: tuple[Loss, ...]
    totals: Totals
    summary: summaries.StepSummary
    ranks: tuple[summaries.RankSummary, ...]
    ranks_over: tuple[int | None, int | None]
    cost: Cost
    goodput: Goodput
    times: ends.Times
    endings: tuple[summaries.Ending, ...]
    price: Price | None
    replayed: Replayed | None
    job: WholeJob | None
    standstills: tuple[Standstill, ...]
    not_finite: ends.NotFinite | None
    resume: ends.Resume | None

    @property
    def price_per_gpu_hour(self) -> float | None:
        """The price without its currency; None without one."""
        return None if self.price is None else self.price.per_gpu_hour

    @property
    def steps(self) -> Steps:
        """The judged steps."""
        return self.recording.steps

    @property
    def other_attempts(self) -> tuple[Attempt, ...]:
        """The attempts that this report is not about."""
        return tuple(a for a in self.recording.attempts if a.number != self.steps.attempt)

    @property
    def costliest_episode(self) -> Episode | None:
        """The costliest episode; None without."""
        return _find_costliest(self.episodes)

    @property
    def slow_lost_seconds(self) -> float:
        """Wall time that was lost to slow ranks."""
        return sum(episode.lost_seconds for episode in self.episodes)

    @property
    def slow_lost_ratio(self) -> float | None:
        """The same as a share of the run; None without steps."""
        covered = self.scores.covered_seconds
        return self.slow_lost_seconds / covered if covered > 0 else None

    def episode_span(self, episode: Episode) -> Span:
        """When one of the episodes was."""
        return self.spans[self.episodes.index(episode)]

    def lost_step_ratio(self, episode: Episode) -> float | None:
        """Mean loss of an episode's steps as a share of their mean duration; None without time."""
        # The loss sums over all steps of a column, and so must the duration.
        covered = self.steps.sum_over_columns(self.scores.job_seconds)
        seconds = float(np.nansum(covered[episode.columns]))
        return episode.lost_seconds / seconds if seconds > 0 else None


def analyse(recording: Recording, *, price: Price | None = None) -> StepAnalysis:
    """Aligns, scores and judges a recording; reads nothing, neither files nor clocks."""
    outcome, all_steps = ends.final_outcome(recording), recording.steps
    recording, standstills = split_standstills(recording, is_over=outcome != "running")
    steps, scores = recording.steps, score(recording.steps, own_times=recording.own_times)
    replayed, (verdict, episodes, losses) = _judge(recording, scores)
    alignment = align(steps)
    if recording.collectives is not None:
        alignment = align_by_collectives(alignment, recording.collectives)
    if replayed is not None:
        alignment = realign(alignment, replayed)
    costliest = _find_costliest(episodes)
    # Over a whole run a late episode of few steps vanishes in the median, so the table narrows.
    columns = costliest.columns if costliest else slice(0, len(steps.numbers))
    numbers = steps.numbers[columns].tolist() or [None]
    return StepAnalysis(
        recording=recording,
        outcome=outcome,
        scores=scores,
        alignment=alignment,
        verdict=verdict,
        episodes=episodes,
        spans=tuple(_measure_span(alignment, episode) for episode in episodes),
        losses=losses,
        totals=_sum_account(steps, scores),
        summary=_summarize(recording, scores),
        ranks=summaries.summarize_ranks(steps, scores, alignment, columns),
        ranks_over=(numbers[0], numbers[-1]),
        cost=cost(steps, scores, losses, None if price is None else price.per_gpu_hour),
        # Nobody waits for a rank that trains by itself.
        goodput=goodput(steps, scores.account, () if steps.is_independent else losses, standstills),
        times=ends.measure_times(recording, alignment),
        endings=summaries.summarize_endings(steps, recording.events),
        price=price,
        replayed=replayed,
        job=whole_job(recording.events),
        standstills=standstills,
        not_finite=ends.find_not_finite(all_steps),
        resume=ends.find_older_resume(recording),
    )


def _measure_span(alignment: Alignment, episode: Episode) -> Span:
    first, last = [episode.columns.start], [episode.columns.stop - 1]
    # The begin is that of the first rank, the end that of the last one.
    begin = nan_stats.lowest(alignment.start(columns=first))
    ends = alignment.start(columns=last) + alignment.steps.seconds[:, last]
    return nan_stats.number(begin), nan_stats.number(nan_stats.highest(ends))


def _sum_account(steps: Steps, scores: Scores) -> Totals:
    account = scores.account
    sums = {
        cause: float(np.nansum(steps.sum_over_columns(values)))
        for cause, values in {**account.host, "": account.transfer}.items()
    }
    return Totals(transfer_seconds=sums.pop(""), host_seconds=sums, missing=account.missing)


def _judge(recording: Recording, scores: Scores) -> tuple[Replayed | None, Judgement]:
    """Judges by a replay where operation rows exist, otherwise by the durations of the steps."""
    # A replay knows what each operation waited for, so it names stages and single operations.
    if recording.operations is None:
        return None, judge_recording(recording, scores)
    replayed = replay_trace(recording.operations)
    losses = list_episode_losses(recording.steps, scores, replayed.episodes)
    return replayed, Judgement(replayed.verdict, replayed.episodes, losses)


def _summarize(recording: Recording, scores: Scores) -> summaries.StepSummary:
    summary = summaries.summarize_steps(recording.steps, scores)
    # Between collectives lies whatever the job did then, so none of them is a slow step.
    return summary if recording.collectives is None else replace(summary, losses=())


def _find_costliest(episodes: tuple[Episode, ...]) -> Episode | None:
    return max(episodes, key=lambda e: e.lost_seconds, default=None)
