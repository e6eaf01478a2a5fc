"""The report on a log: what became of the job, when it stopped moving, and who was to blame."""

import math
from array import array
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lockstep_records.joblogs.model import JobLog, Line
from lockstep_records.joblogs.outcome import Incident, judge_log
from lockstep_reports.recording.log_recording import LogRecording
from lockstep_reports.summary import Spike, StepSummary

SCHEMA = 1
_SPIKE_RATIO = 1.2
_MAX_SPIKES = 100
_MOST_MOMENTS = 40
_UNTOLD = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowStep:
    """A step over 1.2 times the median.

    Attributes:
        index: place among the recorded times, from 0.
        number: as the log counts; None where it does not.
        lost_seconds: beyond the median.
    """

    index: int
    number: int | None
    seconds: float
    ratio: float
    lost_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LogReport:
    """Everything that the pages of a log's report tell."""

    path: Path
    source_kind: str
    log: JobLog
    incident: Incident
    summary: StepSummary
    slow_steps: tuple[SlowStep, ...]
    notes: tuple[str, ...]

    @property
    def moments(self) -> tuple[Line, ...]:
        """First line of each finding, in the order of the log; the first cause is among them."""
        lines = [finding.first for finding in self.log.findings][:_MOST_MOMENTS]
        first = self.incident.first
        return tuple(lines) if first is None or first in lines else (first, *lines)


def make_log_report(recording: LogRecording, *, now_seconds: float | None) -> LogReport:
    """Judges a log.

    Args:
        recording: what was read.
        now_seconds: wall clock, to tell a running job from one that fell silent.
    """
    log = recording.log
    seconds = np.frombuffer(log.step_seconds) if len(log.step_seconds) else np.zeros(0)
    slow = _slow(seconds, log.step_numbers)
    return LogReport(
        path=recording.path,
        source_kind=recording.source_kind,
        log=log,
        incident=judge_log(log, now_seconds=now_seconds),
        summary=_summary(log, seconds, slow),
        slow_steps=slow,
        notes=_notes(log),
    )


def log_json(report: LogReport) -> dict[str, Any]:
    """The report as plain values; what is unknown is None."""
    incident, log = report.incident, report.log
    return {
        "schema": SCHEMA,
        "source": {"kind": report.source_kind, "files": len(log.files), "lines": log.lines},
        "world_size": log.world_size,
        "outcome": incident.outcome,
        "failure_class": incident.failure_class,
        "reason": incident.reason,
        "verdict": _verdict(incident),
        "episodes": [_episode(step) for step in report.slow_steps],
        "steps": asdict(report.summary),
        "first_sign": log.first_sign,
        "last_progress": log.last_progress,
        "last_sign": log.last_sign,
        "startup_seconds": incident.startup_seconds,
        "run_seconds": incident.run_seconds,
        "wall_seconds": incident.wall_seconds,
        "seconds_after_last_progress": incident.seconds_after_last_progress,
        "lost_seconds": sum(step.lost_seconds for step in report.slow_steps)
        if report.summary.count
        else None,
        "events": [asdict(line) for line in report.moments],
        "first_cause": None if incident.first is None else asdict(incident.first),
        "goodput": _goodput(report),
        "collectives": None,
        "what_if": None,
        "alignment": None,
        "notes": list(report.notes),
    }


def _verdict(incident: Incident) -> dict[str, Any]:
    return {
        "kind": incident.blame,
        "ranks": list(incident.ranks),
        "group": incident.group,
        "phase": None,
        "cause": incident.cause,
        "confidence": None,
        "evidence": [incident.reason, *(evidence_text(line) for line in incident.evidence)],
    }


def _episode(step: SlowStep) -> dict[str, Any]:
    """A slow step; nobody can be named for it, by a log."""
    return {
        "start_step": step.index,
        "end_step": step.index,
        "ranks": [],
        "lost_seconds": step.lost_seconds,
    }


def evidence_text(line: Line) -> str:
    """A line as a sentence: where it stands, who said it, what."""
    rank = "" if line.rank is None else f", rank {line.rank}"
    return f"{line.file}:{line.number}{rank}: {line.text}"


def _slow(
    seconds: "np.ndarray[Any, np.dtype[np.float64]]", numbers: "array[int]"
) -> tuple[SlowStep, ...]:
    if not len(seconds):
        return ()
    median = float(np.median(seconds))
    if not median > 0:
        return ()
    places = np.nonzero(seconds > _SPIKE_RATIO * median)[0]
    biggest = sorted(places, key=lambda place: -seconds[place])[:_MAX_SPIKES]
    return tuple(
        SlowStep(
            index=int(place),
            number=None if numbers[place] == _UNTOLD else numbers[place],
            seconds=float(seconds[place]),
            ratio=float(seconds[place]) / median,
            lost_seconds=float(seconds[place]) - median,
        )
        for place in sorted(biggest)
    )


def _summary(
    log: JobLog, seconds: "np.ndarray[Any, np.dtype[np.float64]]", slow: tuple[SlowStep, ...]
) -> StepSummary:
    told = len(seconds) > 0
    numbers = [
        number
        for number in (log.step_numbers[:1].tolist() + log.step_numbers[-1:].tolist())
        if number != _UNTOLD
    ]
    return StepSummary(
        count=len(seconds),
        first=min(numbers, default=None),
        last=max(numbers, default=log.last_step),
        median_seconds=float(np.median(seconds)) if told else None,
        p95_seconds=float(np.quantile(seconds, 0.95)) if told else None,
        spikes=tuple(Spike(index=step.index, ratio=step.ratio) for step in slow),
    )


def _goodput(report: LogReport) -> dict[str, float | None]:
    """Wall time of the ranks by state, as far as a log tells; the parts make up the whole."""
    incident = report.incident
    start, run, after = (
        incident.startup_seconds,
        incident.run_seconds,
        incident.seconds_after_last_progress,
    )
    wall = incident.wall_seconds
    if wall is None:
        return {
            "startup": start,
            "run": run,
            "after_last_progress": after,
            "unknown": None,
            "ratio": None,
        }
    known = sum(part for part in (start, run, after) if part is not None)
    return {
        "startup": start,
        "run": run,
        "after_last_progress": after,
        "unknown": max(0.0, wall - known),
        "ratio": None
        if run is None or not math.isfinite(wall) or wall <= 0
        else min(1.0, run / wall),
    }


def _notes(log: JobLog) -> tuple[str, ...]:
    notes = list(log.notes)
    if log.block_means:
        notes.append(
            f"{log.block_means} of the {len(log.step_seconds)} recorded times are means over a"
            " block of steps."
        )
    if log.first_sign is None:
        notes.append("No line tells a time.")
    return tuple(notes)
