"""Builds the document on recorded steps from their analysis."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from typing import Any

import numpy as np

from lockstep_outcomes.progress.job_goodput import WholeJob
from lockstep_reports import nan_stats
from lockstep_reports.analysis.cost import causes, cost
from lockstep_reports.analysis.signs import Sign, find_signs
from lockstep_reports.analysis.steps import StepAnalysis
from lockstep_reports.arrays import Matrix
from lockstep_reports.document import published
from lockstep_reports.document.advice import step_advice
from lockstep_reports.document.headline import Finding, findings
from lockstep_reports.document.missing_reasons import step_reasons, with_reasons
from lockstep_reports.document.model import Document
from lockstep_reports.document.step_sentences import (
    describe_end,
    list_caveats,
    step_cards,
    write_story,
)
from lockstep_reports.document.steps_sections import step_sections
from lockstep_reports.document.timeline import step_trace_events
from lockstep_reports.document.what_if import WhatIfFigures, describe_replay
from lockstep_reports.recording.align import Clocks
from lockstep_reports.verdict.losses import Loss
from lockstep_reports.verdict.verdict import Episode, EpisodeRecord
from lockstep_reports.wording import clock, plural

_MAX_COLLECTIVES = 1000
_JOB_FIELDS = (
    "job_id", "cluster", "project", "attempt", "world_size", "missing_ranks", "notes",
)  # fmt: skip


def document_steps(analysis: StepAnalysis) -> Document:
    """The document on an analysis."""
    signs = find_signs(analysis)
    replay = None if analysis.replayed is None else analysis.replayed.what_if
    what_if = None if replay is None else describe_replay(replay, analysis)
    all_findings = tuple(findings(analysis))
    stacks = analysis.recording.stacks if analysis.standstills else ()
    steps = analysis.steps
    return Document(
        name=f"job {steps.job_id}, attempt {steps.attempt}",
        headline=all_findings[0].sentence,
        severity=all_findings[0].severity,
        story=write_story(analysis, all_findings),
        facts=_list_facts(analysis),
        cards=step_cards(analysis),
        sections=step_sections(analysis, signs, what_if),
        advice=step_advice(analysis),
        remarks=tuple(filter(None, (describe_end(analysis), *list_caveats(analysis)))),
        links=tuple((f"stacks of rank {rank}", path.as_uri()) for rank, path in stacks),
        published=_publish(analysis, all_findings[0], signs, what_if),
        durations=_measure_durations(analysis),
        key_figures=_list_key_figures(analysis),
        trace_events=partial(step_trace_events, analysis),
    )


def _list_facts(analysis: StepAnalysis) -> tuple[str, ...]:
    steps, begin = analysis.steps, analysis.times.first_step
    facts = [plural(steps.world_size, "rank")]
    facts += [f"cluster {steps.cluster}"] if steps.cluster else []
    facts += [] if begin is None else [f"began {clock(begin)} UTC"]
    return (*facts, f"read from {analysis.recording.source_kind.replace('_', ' ')}")


def _measure_durations(analysis: StepAnalysis) -> Mapping[str, Matrix]:
    """Seconds [steps] of the whole step and, as medians over the ranks, of its phases."""
    phases = analysis.steps.phases.items()
    medians = {phase: nan_stats.median(seconds, axis=0) for phase, seconds in phases}
    spent = {phase: seconds for phase, seconds in medians.items() if np.nansum(seconds) > 0}
    return {"step": analysis.scores.step_seconds, **spent}


def _list_key_figures(analysis: StepAnalysis) -> Mapping[str, float | None]:
    """Goodput and loss; amounts per step, because two runs differ in length."""
    cost, count = analysis.cost, analysis.summary.count
    lost_money = cost.lost_money
    return {
        "goodput_ratio": analysis.goodput.ratio,
        "lost_ratio": cost.lost_ratio,
        "lost_gpu_seconds_per_step": cost.lost_gpu_seconds / count if count else None,
        "lost_money_per_step": None if lost_money is None or not count else lost_money / count,
    }


def _publish(
    analysis: StepAnalysis,
    finding: Finding,
    signs: Sequence[Sign],
    what_if: WhatIfFigures | None,
) -> published.StepsReport:
    steps, log, alignment = analysis.steps, analysis.recording.collectives, analysis.alignment
    report = published.StepsReport(
        headline=finding.sentence,
        severity=finding.severity,
        source=published.Source(kind=analysis.recording.source_kind),
        **{name: getattr(steps, name) for name in _JOB_FIELDS},
        attempts=analysis.other_attempts,
        outcome=analysis.outcome,
        verdict=analysis.verdict,
        standstills=analysis.standstills,
        episodes=tuple(_publish_episode(analysis, episode) for episode in analysis.episodes),
        losses=tuple(_publish_loss(analysis, loss) for loss in analysis.losses),
        steps=analysis.summary,
        **asdict(analysis.times),
        **asdict(analysis.cost),
        price_per_gpu_hour=analysis.price_per_gpu_hour,
        causes=causes(analysis.goodput, analysis.price_per_gpu_hour),
        goodput={**analysis.goodput.seconds, "ratio": analysis.goodput.ratio},
        job_goodput=None if analysis.job is None else _publish_goodput(analysis.job),
        signs=tuple(signs),
        ranks=analysis.ranks,
        ranks_over=analysis.ranks_over,
        endings=analysis.endings,
        alignment=Clocks(**_copy(alignment, Clocks)),
        collectives=None if log is None else log.items[:_MAX_COLLECTIVES],
        what_if=what_if,
        unknown={},
    )
    return with_reasons(report, step_reasons(analysis))


def _publish_goodput(job: WholeJob) -> published.JobGoodput:
    return published.JobGoodput(
        attempts=job.num_attempts,
        elapsed_seconds=job.elapsed_seconds,
        allocated_gpu_seconds=job.goodput.allocated_gpu_seconds,
        productive_ratio=job.goodput.productive_ratio,
        ettr_ratio=job.goodput.ettr_ratio,
        gpu_seconds=job.goodput.gpu_seconds,
    )


def _publish_loss(analysis: StepAnalysis, loss: Loss) -> published.LostTime:
    part = cost(analysis.steps, analysis.scores, (loss,), analysis.price_per_gpu_hour)
    return published.LostTime(
        **_copy(loss, Loss), lost_gpu_seconds=part.lost_gpu_seconds, lost_money=part.lost_money
    )


def _publish_episode(analysis: StepAnalysis, episode: Episode) -> published.SlowEpisode:
    begin, end = analysis.episode_span(episode)
    return published.SlowEpisode(
        **_copy(episode, EpisodeRecord),
        lost_seconds=episode.lost_seconds,
        start_time=begin,
        end_time=end,
        lost_ratio=analysis.lost_step_ratio(episode),
    )


def _copy(value: Any, kind: type[Any]) -> dict[str, Any]:
    """The fields of a value that a base class of it declares."""
    return {field.name: getattr(value, field.name) for field in fields(kind)}
