"""The content of the HTML page of a report on steps: figures, tables and their hints."""

from typing import Any

from lockstep_reports.job_report import Page
from lockstep_reports.render.evidence_text import sign_sentences
from lockstep_reports.render.figures import figures, heat_map_quantity, plotly_script
from lockstep_reports.render.missing_reasons import why_no_arrivals, why_no_phases
from lockstep_reports.render.palette import PHASE_COLOURS
from lockstep_reports.render.step_text import (
    caveats,
    episode_end,
    further_evidence,
    has_clock,
    has_end,
    how_ended,
)
from lockstep_reports.step_analysis import StepAnalysis
from lockstep_reports.step_losses import loss_sentence
from lockstep_reports.summary import RankSummary
from lockstep_reports.verdict.verdict import culprits
from lockstep_reports.whatif.payload import repaired, what_if_json

_MAX_RANKS = 64
_HEAT_MAPS = {
    "lateness": {
        "title": "Who was late, step by step",
        "hint": "Milliseconds by which each rank came later to the synchronisation than the"
        " earliest one.",
    },
    "own": {
        "title": "Who was slower than usual, step by step",
        "hint": "How much longer than its own median each worker took, in percent.",
    },
    "nothing": {"title": "", "hint": ""},
}
# What a curve of step times can prove depends on whose times they are.
_STEP_HINTS = {
    "lateness": "All ranks share it, so it tells when, not who.",
    "own": "Median over the workers, whose times are their own.",
    "nothing": "One series stands for the whole job.",
}
GLOSSARY = {
    "data": "waiting for the next batch",
    "forward": "forward pass",
    "backward": "backward pass until the last local gradient is ready",
    "sync": "from the own arrival at the collectives to their completion: waiting and transfer",
    "optimizer": "optimizer step",
    "checkpoint": "writing a checkpoint",
    "eval": "evaluation",
    "other": "host work between the others",
}
STATE_COLOURS = {
    "productive": "#009e73",
    "startup": "#e69f00",
    "straggler_wait": "#a3264a",
    "host_bound": "#8a6d1d",
    "communication": "#d5dbe2",
    "data_wait": "#56b4e9",
    "checkpoint": "#cc79a7",
    "evaluation": "#f0e442",
    "hang": "#4a0d3f",
    "restore": "#8d6cab",
    "rework": "#d55e00",
    "recovery": "#b8860b",
    "idle": "#eef1f4",
    "other": "#7f7f7f",
    "unknown": "#ffffff",
}


def step_page(analysis: StepAnalysis) -> Page:
    """The content by the names of the template's variables."""
    drawn = figures(analysis)
    quantity = heat_map_quantity(analysis)
    costliest = analysis.accused_episode
    content = {
        "analysis": analysis,
        "steps": analysis.steps,
        "how_ended": how_ended(analysis),
        "stacks": [(rank, path.resolve().as_uri()) for rank, path in analysis.stacks],
        "evidence": further_evidence(analysis),
        "signs": sign_sentences(analysis.signs),
        "whole_job": _whole_job(analysis),
        "caveats": caveats(analysis),
        "losses": [loss_sentence(loss) for loss in analysis.summary.losses],
        "episodes": _episode_rows(analysis),
        "has_clock": has_clock(analysis),
        "ranks": _latest_ranks(analysis),
        "has_arrivals": why_no_arrivals(analysis) is None,
        "clocks": _largest_offsets(analysis),
        # Wording follows what is drawn: lateness needs arrivals, own times do not.
        "heat_map": _HEAT_MAPS[quantity],
        "step_hint": _STEP_HINTS[quantity],
        "culprits": costliest.ranks if costliest else (),
        "states": _state_rows(analysis),
        "glossary": GLOSSARY,
        "has_endings": any(has_end(ending) for ending in analysis.endings),
        "phase_colours": PHASE_COLOURS,
        "figures": drawn,
        "what_if": _what_if(analysis),
        # The script has 4.8 MB, so a page without figures goes without it.
        "plotly_script": plotly_script() if drawn else "",
    }
    return Page(template="steps.html.j2", content=content)


def _largest_offsets(analysis: StepAnalysis) -> list[tuple[str, float]]:
    """Node or rank and seconds of the clocks that are furthest off."""
    offsets = analysis.alignment.offsets.items()
    return sorted(offsets, key=lambda pair: -abs(pair[1]))[:_MAX_RANKS]


def _what_if(analysis: StepAnalysis) -> dict[str, Any] | None:
    """Figures and repairs of a replay; None without operation rows that could be replayed."""
    if analysis.replayed is None or analysis.replayed.what_if is None:
        return None
    payload = what_if_json(analysis.replayed, analysis)
    # The slowest workers first, then each pipeline stage as a whole.
    repairs = [payload["worst_workers"], *payload["stages"].values()] if payload else []
    return {
        "payload": payload,
        "repairs": [
            {"who": repaired(analysis.replayed.what_if, repair["ranks"]), **repair}
            for repair in repairs
            # A repair that saves nothing is no advice.
            if (repair["removed_ratio"] or 0) > 0
        ],
    }


def _episode_rows(analysis: StepAnalysis) -> list[dict[str, Any]]:
    return [
        {
            "who": culprits(episode),
            "episode": episode,
            "end": episode_end(analysis, episode),
            "span": analysis.episode_span(episode),
            "lost_ratio": analysis.lost_step_ratio(episode),
        }
        for episode in analysis.episodes
    ]


def _latest_ranks(analysis: StepAnalysis) -> list[RankSummary]:
    """The latest ranks, in the order of the ranks; empty where no lateness is known."""
    # Medians of unknown lateness would be a table of "unknown".
    if all(summary.lateness_seconds is None for summary in analysis.ranks):
        return []
    by_lateness = sorted(analysis.ranks, key=lambda summary: -(summary.lateness_seconds or 0.0))
    return sorted(by_lateness[:_MAX_RANKS], key=lambda summary: summary.rank)


def _whole_job(analysis: StepAnalysis) -> dict[str, Any] | None:
    """Name, colour, GPU seconds and share of each state of all attempts; None where unknown."""
    job = analysis.job
    if job is None or not job.goodput.allocated_gpu_seconds:
        return None
    allocated = job.goodput.allocated_gpu_seconds
    spent = sorted(job.goodput.gpu_seconds.items(), key=lambda pair: -pair[1])
    return {
        "num_attempts": job.num_attempts,
        "elapsed_seconds": job.elapsed_seconds,
        "allocated_seconds": allocated,
        "states": [
            {
                "name": state.replace("_", " "),
                "colour": STATE_COLOURS[state],
                "seconds": seconds,
                "ratio": seconds / allocated,
            }
            for state, seconds in spent
            if seconds > 0
        ],
    }


def _state_rows(analysis: StepAnalysis) -> list[dict[str, Any]]:
    """Name, colour, seconds and share of each goodput state; empty where no phases are known."""
    covered = analysis.goodput.covered_seconds
    if why_no_phases(analysis) is not None or covered <= 0:
        return []
    return [
        {
            "name": state.replace("_", " "),
            "colour": STATE_COLOURS[state],
            "seconds": seconds,
            "ratio": seconds / covered,
        }
        for state, seconds in analysis.goodput.seconds.items()
    ]
