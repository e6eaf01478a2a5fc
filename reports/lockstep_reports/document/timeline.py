"""The timeline of a report as Chrome trace events, one track per rank, bounded in size.

The phases of a step row are drawn one after the other in the order of a step: a row keeps their
lengths, not their positions.
"""

from collections.abc import Iterator

import numpy as np

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_reports.analysis.logs import LogAnalysis
from lockstep_reports.analysis.steps import StepAnalysis
from lockstep_reports.document.model import TraceEvent
from lockstep_reports.recording.operations import OperationTrace
from lockstep_reports.verdict.verdict import slow_name

# Bounds the file, whatever the length of the job.
MAX_EVENTS = 200_000
_MAX_RANKS = 256
_MAX_LINE_LENGTH = 400
VERDICT_PROCESS, RANKS_PROCESS = 0, 1
"""Processes of the trace: one for episodes, one whose threads are the ranks."""


def step_trace_events(analysis: StepAnalysis) -> Iterator[TraceEvent]:
    """Names of the ranks, then operations or phases by rank, then the episodes."""
    rows = _chosen_rows(analysis)
    for row in rows:
        member = analysis.steps.members[row]
        name = f"rank {member.rank} {member.node}".strip()
        yield name_track("thread_name", RANKS_PROCESS, member.rank, name)
        yield name_track("thread_sort_index", RANKS_PROCESS, member.rank, member.rank)
    if analysis.recording.operations is not None:
        yield from _operation_events(analysis.recording.operations)
    else:
        yield from _phase_events(analysis, rows)
    yield from _episode_events(analysis)


def log_trace_events(analysis: LogAnalysis) -> Iterator[TraceEvent]:
    """An instant for the first line of each finding that has a time."""
    times = [line.time for line in analysis.first_lines if line.time is not None]
    if analysis.log.first_sign is not None:
        times.append(analysis.log.first_sign)
    origin = min(times, default=0.0)
    for line in analysis.first_lines:
        if line.time is not None:
            yield {
                "ph": "i", "s": "g", "name": line.kind, "pid": RANKS_PROCESS,
                "tid": line.rank or 0, "ts": _microseconds(line.time - origin),
                "args": {"line": line.text[:_MAX_LINE_LENGTH]},
            }  # fmt: skip


def name_track(name: str, process: int, thread: int, value: str | int) -> TraceEvent:
    """The event that gives a track its name, or its place among the others."""
    key = "sort_index" if name.endswith("index") else "name"
    return {"ph": "M", "name": name, "pid": process, "tid": thread, "args": {key: value}}


def _chosen_rows(analysis: StepAnalysis) -> list[int]:
    slow = set(analysis.verdict.ranks)

    def importance(row: int) -> tuple[bool, float]:
        summary = analysis.ranks[row]
        return summary.rank not in slow, -(summary.lateness_seconds or 0.0)

    return sorted(sorted(range(len(analysis.ranks)), key=importance)[:_MAX_RANKS])


def _phase_events(analysis: StepAnalysis, rows: list[int]) -> Iterator[TraceEvent]:
    steps = analysis.steps
    phases = [phase for phase in STEP_PHASES if np.nansum(steps.phases[phase]) > 0]
    max_steps = max(1, MAX_EVENTS // (len(rows) * max(1, len(phases))))
    columns = _columns_around_onset(analysis, max_steps)
    origin, _ = analysis.alignment.measure_span()
    if origin is None:
        return
    numbers = steps.numbers[columns].tolist()
    for row, start in zip(rows, analysis.alignment.start(rows, columns), strict=True):
        begin = start - origin
        for phase in phases:
            seconds = np.nan_to_num(steps.phases[phase][row, columns])
            name = "sync (waits)" if phase == "sync" else phase
            for index in np.flatnonzero((seconds > 0) & ~np.isnan(begin)).tolist():
                span = float(begin[index]), float(seconds[index])
                yield _rank_span(name, steps.ranks[row], *span, step=numbers[index])
            begin = begin + seconds


def _columns_around_onset(analysis: StepAnalysis, max_steps: int) -> slice:
    """Columns from a quarter before the costliest episode's begin; the last ones without it."""
    num_steps = len(analysis.steps.numbers)
    episode = analysis.costliest_episode
    first = num_steps - max_steps if episode is None else episode.columns.start - max_steps // 4
    # The window is moved into the recording and not cut short at its ends.
    first = max(0, min(first, num_steps - max_steps))
    return slice(first, min(num_steps, first + max_steps))


def _rank_span(
    name: str, rank: int, begin: float, seconds: float, **arguments: int | None
) -> TraceEvent:
    return {
        "ph": "X", "name": name, "pid": RANKS_PROCESS, "tid": rank, "ts": _microseconds(begin),
        "dur": _microseconds(seconds), "args": arguments,
    }  # fmt: skip


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _operation_events(trace: OperationTrace) -> Iterator[TraceEvent]:
    begin = trace.start.astype(np.float64)
    origin = float(begin.min()) if len(begin) else 0.0
    for row in np.argsort(begin, kind="stable")[:MAX_EVENTS].tolist():
        yield _rank_span(
            trace.types[trace.type_of[row]],
            int(trace.rank[row]),
            float(begin[row]) - origin,
            float(trace.duration[row]),
            step=int(trace.step[row]),
            batch=int(trace.batch[row]) if trace.batch[row] >= 0 else None,
        )


def _episode_events(analysis: StepAnalysis) -> Iterator[TraceEvent]:
    origin, _ = analysis.alignment.measure_span()
    if origin is None:
        return
    for episode in analysis.episodes:
        begin, end = analysis.episode_span(episode)
        if begin is not None and end is not None:
            yield {
                "ph": "X", "name": f"{slow_name(episode)} slow in {episode.phase or 'no phase'}",
                "pid": VERDICT_PROCESS, "tid": 0, "ts": _microseconds(begin - origin),
                "dur": _microseconds(end - begin),
                "args": {"lost_seconds": episode.lost_seconds, "ranks": list(episode.ranks)},
            }  # fmt: skip
