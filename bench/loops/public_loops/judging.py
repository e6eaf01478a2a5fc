"""Holds what a report says of a run against the fault that was in it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lockstep_reports.analysis.steps import StepAnalysis, analyse
from lockstep_reports.readers import ReadOptions, read_source
from lockstep_reports.recording.recording import Recording
from lockstep_reports.recording.steps import Steps
from public_loops.cell import JOB_ID, Run
from public_loops.plan import ENDS, LOOPS, SLOW_PHASE

_MIN_TOLERANCE_STEPS, _TOLERANCE_RATIO = 5, 0.02
# An episode that lost less names nobody.
_MIN_COST_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Whether a report is right.

    Attributes:
        words: what it says, shortly.
        onset_error: steps from the fault's begin to that of the episode; None without.
    """

    is_right: bool
    words: str
    onset_error: int | None = None


def judge_run(name: str, fault: str, run: Run, folder: Path) -> Judged:
    """Reads the job in a folder and judges the report."""
    if run.error:
        return Judged(is_right=False, words=f"cannot be run: {run.error[:120]}")
    recording = read_source(str(folder / "jobs" / JOB_ID), ReadOptions())
    assert isinstance(recording, Recording)
    if fault in ENDS:
        return _judge_end(name, fault, recording)
    analysis = analyse(recording)
    if fault == "healthy":
        return Judged(is_right=analysis.verdict.kind == "nobody", words=_words(analysis))
    return _judge_slow(name, fault, run, analysis)


def _judge_end(name: str, fault: str, recording: Recording) -> Judged:
    """Outcome, cause and rank; where no launcher watched a kill, that nobody else is named."""
    end = recording.end
    found = end.get("outcome"), end.get("cause"), end.get("cause_ranks")
    words = " ".join(map(str, found)) if end else "no end"
    expected = "failed", ENDS[fault], [LOOPS[name].slow_rank]
    unwatched = LOOPS[name].starts_ranks and fault == "killed" and not end
    return Judged(is_right=found == expected or unwatched, words=words)


def _judge_slow(name: str, fault: str, run: Run, analysis: StepAnalysis) -> Judged:
    """Rank, phase or that its process stood still, and onset."""
    verdict, slow_rank = analysis.verdict, LOOPS[name].slow_rank
    steps = analysis.steps
    least = _MIN_COST_SHARE * max((e.lost_seconds for e in analysis.episodes), default=0.0)
    begins = [
        e.start_step
        for e in analysis.episodes
        if slow_rank in e.ranks
        and e.lost_seconds >= least
        # A core that was slower before is another episode of the same rank.
        and (fault != "stopped" or e.cause is not None)
    ]
    struck = _struck_step(steps, slow_rank, run)
    error = min(begins) - struck if begins and struck is not None else None
    is_named = verdict.ranks == (slow_rank,) and verdict.phase == SLOW_PHASE[fault]
    if fault == "stopped":
        is_named = is_named and verdict.cause == "process_stopped"
    tolerance = max(_MIN_TOLERANCE_STEPS, _TOLERANCE_RATIO * len(steps.numbers))
    is_right = is_named and error is not None and abs(error) <= tolerance
    return Judged(is_right=is_right, words=_words(analysis), onset_error=error)


def _struck_step(steps: Steps, slow_rank: int, run: Run) -> int | None:
    """The step in which the fault struck first; None where none had begun."""
    # Where ranks train by themselves, episodes count the steps of the furthest.
    row = slice(None) if steps.is_independent else [steps.ranks.index(slow_rank)]
    before = np.flatnonzero((steps.start[row] <= run.struck).any(axis=0))
    return int(steps.numbers[before[-1]]) if len(before) else None


def known_truth(name: str, fault: str, run: Run, folder: Path) -> dict[str, Any] | None:
    """What ``rejudge.py`` holds the report on a run against; None for ends, which it has not."""
    if run.error or fault in ENDS:
        return None
    if fault == "healthy":
        return {"lost": None}
    recording = read_source(str(folder / "jobs" / JOB_ID), ReadOptions())
    assert isinstance(recording, Recording)
    slow_rank = LOOPS[name].slow_rank
    says = ["stop|stood still"] if fault == "stopped" else []
    first = _struck_step(recording.steps, slow_rank, run)
    phase = SLOW_PHASE[fault]
    return {"ranks": [slow_rank], "phase": phase, "first": first, "says": says, "lost": None}


def _words(analysis: StepAnalysis) -> str:
    verdict = analysis.verdict
    ranks = f"{verdict.kind} {', '.join(map(str, verdict.ranks))}" if verdict.ranks else ""
    parts = (ranks or verdict.kind, verdict.phase or "", verdict.cause or "")
    return " ".join(filter(None, parts))
