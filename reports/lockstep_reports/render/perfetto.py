"""A trace for ui.perfetto.dev: Chrome trace events, one track a rank, bounded in size.

Phases of a step row are drawn one after the other in the order of a step; a row keeps their
lengths, not their places.
"""

import gzip
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_reports.incident import LogReport
from lockstep_reports.recording.operations import OperationTrace
from lockstep_reports.report import Report
from lockstep_reports.verdict.verdict import whom

MAX_EVENTS = 200_000
_MOST_RANKS = 256
_EPISODES = 0  # their process; ranks are threads of process 1
_RANKS = 1

Event = dict[str, Any]


def trace_bytes(report: Report | LogReport, *, packed: bool) -> bytes:
    """The trace, gzip around it when asked.

    Raises:
        ValueError: nothing of the recording has a time.
    """
    events = [*_named(report), *_events(report)]
    if not any(event["ph"] != "M" for event in events):
        raise ValueError(
            "the recording tells no times, so it has no timeline; leave out --perfetto"
        )
    told = {"traceEvents": events, "displayTimeUnit": "ms"}
    text = json.dumps(told, separators=(",", ":"), allow_nan=False).encode()
    return gzip.compress(text, mtime=0) if packed else text


def _events(report: Report | LogReport) -> Iterator[Event]:
    if isinstance(report, LogReport):
        yield from _moments(report)
        return
    if report.operations is not None:
        yield from _operations(report.operations)
    else:
        yield from _phases(report)
    yield from _episodes(report)


def _named(report: Report | LogReport) -> Iterator[Event]:
    """Names of the tracks."""
    yield _meta("process_name", _EPISODES, 0, "verdict")
    yield _meta("process_name", _RANKS, 0, "ranks")
    if isinstance(report, LogReport):
        return
    for row in _chosen(report):
        member = report.steps.members[row]
        yield _meta("thread_name", _RANKS, member.rank, f"rank {member.rank} {member.node}".strip())
        yield _meta("thread_sort_index", _RANKS, member.rank, member.rank)


def _meta(name: str, process: int, thread: int, value: str | int) -> Event:
    key = "sort_index" if name.endswith("index") else "name"
    return {"ph": "M", "name": name, "pid": process, "tid": thread, "args": {key: value}}


def _chosen(report: Report) -> list[int]:
    """Rows of the ranks that are drawn: the latest ones, where there are too many for all."""
    late = [-(line.lateness_seconds or 0.0) for line in report.ranks]
    culprits = set(report.verdict.ranks)
    order = sorted(
        range(len(late)), key=lambda row: (report.ranks[row].rank not in culprits, late[row])
    )
    return sorted(order[:_MOST_RANKS])


def _phases(report: Report) -> Iterator[Event]:
    steps, rows = report.steps, _chosen(report)
    drawn = [phase for phase in STEP_PHASES if np.nansum(steps.phases[phase]) > 0]
    count = max(1, MAX_EVENTS // (len(rows) * max(1, len(drawn))))
    places = _around(report, count)
    start = report.alignment.start[:, places]
    if np.isnan(start).all():
        return
    zero = float(np.nanmin(report.alignment.start))
    numbers = steps.numbers[places].tolist()
    for row in rows:
        begin = start[row] - zero
        for phase in drawn:
            spent = np.nan_to_num(steps.phases[phase][row, places])
            name = "sync (waits)" if phase == "sync" else phase
            for at in np.flatnonzero((spent > 0) & ~np.isnan(begin)).tolist():
                yield _span(
                    name, steps.ranks[row], float(begin[at]), float(spent[at]), step=numbers[at]
                )
            begin = begin + spent


def _around(report: Report, count: int) -> slice:
    """So many steps around the beginning of the dearest episode, or the last ones."""
    whole = len(report.steps.numbers)
    worst = report.worst
    first = whole - count if worst is None else worst.places.start - count // 4
    first = max(0, min(first, whole - count))
    return slice(first, min(whole, first + count))


def _span(name: str, rank: int, begin: float, seconds: float, **told: Any) -> Event:
    return {
        "ph": "X", "name": name, "pid": _RANKS, "tid": rank, "ts": round(begin * 1e6, 3),
        "dur": round(seconds * 1e6, 3), "args": told,
    }  # fmt: skip


def _operations(trace: OperationTrace) -> Iterator[Event]:
    begin = trace.start.astype(np.float64)
    zero = float(begin.min()) if len(begin) else 0.0
    for at in np.argsort(begin, kind="stable")[:MAX_EVENTS].tolist():
        yield _span(
            trace.types[trace.type_of[at]],
            int(trace.rank[at]),
            float(begin[at]) - zero,
            float(trace.duration[at]),
            step=int(trace.step[at]),
            batch=int(trace.batch[at]) if trace.batch[at] >= 0 else None,
        )


def _episodes(report: Report) -> Iterator[Event]:
    start = report.alignment.start
    if np.isnan(start).all():
        return
    zero = float(np.nanmin(start))
    for episode in report.episodes:
        begin, end = report.span(episode)
        if begin is not None and end is not None:
            yield {
                "ph": "X", "name": f"{whom(episode)} slow in {episode.phase or 'no phase'}",
                "pid": _EPISODES, "tid": 0, "ts": round((begin - zero) * 1e6, 3),
                "dur": round((end - begin) * 1e6, 3),
                "args": {"lost_seconds": episode.lost_seconds, "ranks": list(episode.ranks)},
            }  # fmt: skip


def _moments(report: LogReport) -> Iterator[Event]:
    times = [line.time for line in report.moments if line.time is not None]
    if report.log.first_sign is not None:
        times.append(report.log.first_sign)
    zero = min(times, default=0.0)
    for line in report.moments:
        if line.time is not None:
            yield {
                "ph": "i", "s": "g", "name": line.kind, "pid": _RANKS, "tid": line.rank or 0,
                "ts": round((line.time - zero) * 1e6, 3), "args": {"line": line.text[:400]},
            }  # fmt: skip
