"""The analysis of recorded steps as plain values, in the published form of ``published.py``."""

from dataclasses import asdict
from typing import Any

from lockstep_records.job_goodput import WholeJob
from lockstep_reports.cost import causes
from lockstep_reports.job_report import SCHEMA_VERSION
from lockstep_reports.step_analysis import StepAnalysis
from lockstep_reports.verdict.dispatch import collectives_json
from lockstep_reports.verdict.verdict import Episode
from lockstep_reports.whatif.payload import what_if_json


def step_json(analysis: StepAnalysis) -> dict[str, Any]:
    """All fields of the published form that an analysis fills; unknown is None."""
    steps, price = analysis.steps, analysis.price_per_gpu_hour
    return {
        "schema": SCHEMA_VERSION,
        "source": {"kind": analysis.source_kind},
        "job_id": steps.job_id,
        "cluster": steps.cluster,
        "project": steps.project,
        "attempt": steps.attempt,
        "attempts": [asdict(attempt) for attempt in analysis.others],
        "world_size": steps.world_size,
        "missing_ranks": list(steps.missing_ranks),
        "outcome": analysis.outcome,
        "verdict": asdict(analysis.verdict),
        "standstills": [asdict(standstill) for standstill in analysis.standstills],
        "episodes": [_episode_json(analysis, episode) for episode in analysis.episodes],
        "steps": asdict(analysis.summary),
        **asdict(analysis.times),
        **asdict(analysis.cost),
        "price_per_gpu_hour": price,
        "causes": [asdict(cause) for cause in causes(analysis.goodput, price)],
        "goodput": {**analysis.goodput.seconds, "ratio": analysis.goodput.ratio},
        "job_goodput": job_goodput_json(analysis.job),
        "signs": [asdict(sign) for sign in analysis.signs],
        "ranks": [asdict(rank) for rank in analysis.ranks],
        "ranks_over": list(analysis.ranks_over),
        "endings": [asdict(ending) for ending in analysis.endings],
        "alignment": {
            "offsets": analysis.alignment.offsets,
            "drifts": analysis.alignment.drifts,
            "residual_seconds": analysis.alignment.residual_seconds,
            "residual_p95_seconds": analysis.alignment.residual_p95_seconds,
        },
        "collectives": collectives_json(analysis.collectives),
        "what_if": None if analysis.replayed is None else what_if_json(analysis.replayed, analysis),
        "notes": list(steps.notes),
    }


def job_goodput_json(job: WholeJob | None) -> dict[str, Any] | None:
    """Allocated GPU seconds of all attempts by state; None where no launcher told them."""
    if job is None:
        return None
    return {
        "attempts": job.num_attempts,
        "elapsed_seconds": job.elapsed_seconds,
        "allocated_gpu_seconds": job.goodput.allocated_gpu_seconds,
        "productive_ratio": job.goodput.productive_ratio,
        "ettr_ratio": job.goodput.ettr_ratio,
        "gpu_seconds": dict(job.goodput.gpu_seconds),
    }


def _episode_json(analysis: StepAnalysis, episode: Episode) -> dict[str, Any]:
    payload = asdict(episode)
    # Matrices and column numbers are of no use outside; seconds and step numbers replace them.
    del payload["columns"], payload["lost_by_step"], payload["group_is_node"]
    begin, end = analysis.episode_span(episode)
    return {
        **payload,
        "start_time": begin,
        "end_time": end,
        "lost_seconds": episode.lost_seconds,
        "lost_ratio": analysis.lost_step_ratio(episode),
    }
