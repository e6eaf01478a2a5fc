"""The analysis of a log: the outcome of the job, its last progress, and who was to blame."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np

from lockstep_outcomes.joblogs.model import JobLog, Line
from lockstep_outcomes.joblogs.outcome import Incident, judge_log
from lockstep_outcomes.joblogs.scan import shortened
from lockstep_reports import nan_stats
from lockstep_reports.analysis.summary import (
    MAX_SPIKES,
    Spike,
    StepSummary,
    slow_columns,
    step_losses,
)
from lockstep_reports.arrays import Integers, Matrix
from lockstep_reports.recording.recording import LogRecording
from lockstep_reports.verdict.verdict import Verdict

_MAX_FINDINGS = 40
# The parser's arrays hold integers only, so it writes this for a step without a number.
_NO_NUMBER = -1


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LogAnalysis:
    """Everything that a report on a log shows.

    Attributes:
        lost_by_step: seconds beyond the median by position of each slow step, in the log's order.
    """

    path: PurePath
    source_kind: str
    log: JobLog
    incident: Incident
    summary: StepSummary
    lost_by_step: Mapping[int, float]
    notes: tuple[str, ...]

    @property
    def first_lines(self) -> tuple[Line, ...]:
        """First line of each finding, in the order of the log; the first cause is among them."""
        lines = [finding.first for finding in self.log.findings][:_MAX_FINDINGS]
        # The first cause may come after 40 lesser findings.
        cause = self.incident.first
        return tuple(lines) if cause is None or cause in lines else (cause, *lines)

    @property
    def verdict(self) -> Verdict:
        """Whom the log blames for the end, with the reason and its lines as evidence."""
        incident = self.incident
        return Verdict(
            kind=incident.blame,
            ranks=incident.ranks,
            group=incident.group,
            cause=incident.cause,
            evidence=(incident.reason, *map(_evidence_sentence, incident.evidence)),
        )


def analyse_log(recording: LogRecording) -> LogAnalysis:
    """Judges a log; reads nothing, neither files nor clocks."""
    log = recording.log
    # An empty buffer is an error for `frombuffer`.
    seconds = np.frombuffer(log.step_seconds) if len(log.step_seconds) else np.zeros(0)
    lost_by_step = _find_slow_steps(seconds)
    return LogAnalysis(
        path=recording.path,
        source_kind=recording.source_kind,
        log=log,
        incident=judge_log(log, now_seconds=recording.read_at_seconds),
        summary=_summarize(log, seconds, lost_by_step),
        lost_by_step=lost_by_step,
        notes=_notes(log),
    )


def _evidence_sentence(line: Line) -> str:
    """A line with its position and its rank."""
    rank = "" if line.rank is None else f", rank {line.rank}"
    return f"{line.file}:{line.number}{rank}: {line.text}"


def _find_slow_steps(seconds: Matrix) -> dict[int, float]:
    """Seconds beyond the median [steps] by position of the slowest steps, in the log's order."""
    median = nan_stats.median_number(seconds)
    # A log that rounds its durations to 0 has no scale to call a step slow by.
    if not median:
        return {}
    indices = np.flatnonzero(slow_columns(seconds)).tolist()
    slowest = sorted(indices, key=lambda index: -seconds[index])[:MAX_SPIKES]
    return {index: float(seconds[index]) - median for index in sorted(slowest)}


def _summarize(log: JobLog, seconds: Matrix, slow: Mapping[int, float]) -> StepSummary:
    median = nan_stats.median_number(seconds)
    # A restart counts anew, so that the last number may be below the first.
    ends = log.step_numbers[:1].tolist() + log.step_numbers[-1:].tolist()
    numbers = [number for number in ends if number != _NO_NUMBER]
    return StepSummary(
        count=len(seconds),
        first=min(numbers, default=None),
        last=max(numbers, default=log.last_step),
        median_seconds=median,
        p95_seconds=nan_stats.quantile_number(seconds, 0.95),
        spikes=tuple(Spike(index=i, ratio=float(seconds[i]) / (median or 1.0)) for i in slow),
        losses=step_losses(seconds, _numbers(log.step_numbers)),
    )


def _numbers(written: "array[int]") -> Integers:
    """Step numbers [steps]; positions where the log has none, or counts anew."""
    numbers = np.array(written, dtype=np.int64)
    is_ascending = len(numbers) > 0 and numbers[0] != _NO_NUMBER and (np.diff(numbers) > 0).all()
    return numbers if is_ascending else np.arange(len(numbers))


def _notes(log: JobLog) -> tuple[str, ...]:
    notes = list(log.notes)
    if log.block_means:
        notes.append(
            f"{log.block_means} of the {len(log.step_seconds)} recorded times are means over a"
            " block of steps."
        )
    if log.first_sign is None:
        notes.append("No line has a time.")
    if log.num_unknown:
        notes.append(
            f"{log.num_unknown:,} of {log.num_severe:,} lines with a severity were not understood;"
            f" the first: {shortened(log.first_unknown)}"
        )
    return tuple(notes)
