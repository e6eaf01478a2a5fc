"""Reads PyTorch profiler (Kineto) traces of several ranks: their NCCL kernels and their steps."""

import json
import re
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lockstep_records.compressed import blocks
from lockstep_reports.readers import ReadOptions
from lockstep_reports.readers.collective_join import join
from lockstep_reports.readers.files import files_of, head
from lockstep_reports.readers.series import timed_steps
from lockstep_reports.recording.collectives import CollectiveLog, Span
from lockstep_reports.recording.recording import Attempt, Recording
from lockstep_reports.wording import plural

MAX_BYTES = 1 << 33
_MAX_EVENT_CHARACTERS = 1 << 24
_MAX_SPANS = 1 << 22
_BEGIN = re.compile(r'"traceEvents"\s*:\s*\[')
_RANK = re.compile(r'"distributedInfo"\s*:\s*\{[^{}]*?"rank"\s*:\s*(\d{1,7})\b')
_WORLD = re.compile(r'"distributedInfo"\s*:\s*\{[^{}]*?"world_size"\s*:\s*(\d{1,7})\b')
_KERNEL = re.compile(r"nccl(?:Dev)?Kernel_([A-Za-z]+)")
_STEP = re.compile(r"ProfilerStep#(\d{1,15})")
_KINDS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": "send_recv",
    "reduce": "reduce",
}


@dataclass(slots=True)
class _Trace:
    rank: int
    world_size: int = 0
    kernels: list[tuple[float, float, str, str]] = field(default_factory=list)
    steps: dict[int, tuple[float, float]] = field(default_factory=dict)


def recognises(path: Path) -> bool:
    """Whether it is a profiler trace, or a folder with some."""
    try:
        return any(_is_trace(file) for file in files_of(path)[:64])
    except (OSError, ValueError):
        return False


def _is_trace(path: Path) -> bool:
    begin = head(path).lstrip()
    return begin[:1] == b"{" and (b'"traceEvents"' in begin or b'"deviceProperties"' in begin)


def read(path: Path, options: ReadOptions) -> Recording:
    """The traces as a recording: profiler steps, and collectives paired by group, kind and order.

    Raises:
        ValueError: no trace can be read; the text says why.
        OSError: a file cannot be read.
    """
    del options
    notes: list[str] = []
    traces: dict[int, _Trace] = {}
    for place, file in enumerate(file for file in files_of(path) if _is_trace(file)):
        try:
            trace = _trace(file, place)
        except ValueError as error:
            notes.append(f"Left out: {error}.")
            continue
        if trace.rank in traces:
            notes.append(f"A second trace of rank {trace.rank} is left out: {file.name}.")
            continue
        traces[trace.rank] = trace
    if not traces:
        raise ValueError(notes[0] if notes else f"{path} holds no profiler trace")
    collectives = join(_spans(traces, notes))
    return _recording(path, traces, collectives, tuple(notes))


def _recording(
    path: Path, traces: dict[int, _Trace], collectives: CollectiveLog, notes: tuple[str, ...]
) -> Recording:
    ranks = sorted(traces)
    numbers = sorted({number for trace in traces.values() for number in trace.steps})
    seconds = np.full((len(ranks), len(numbers)), np.nan)
    sync = seconds.copy()
    for row, rank in enumerate(ranks):
        for column, number in enumerate(numbers):
            if number in traces[rank].steps:
                begin, end = traces[rank].steps[number]
                seconds[row, column] = end - begin
                sync[row, column] = sum(
                    e - s for s, e, _, _ in traces[rank].kernels if begin <= s < end
                )
    steps = timed_steps(
        path.name.partition(".")[0],
        ranks,
        np.array(numbers, dtype=np.int64),
        seconds,
        sync=sync,
        world_size=max(max(ranks) + 1, *(trace.world_size for trace in traces.values())),
        notes=notes,
    )
    return Recording(
        source_kind="kineto",
        path=path,
        steps=steps,
        events=(),
        attempts=(Attempt(number=0, outcome=None),),
        collectives=collectives,
    )


def _spans(traces: dict[int, _Trace], notes: list[str]) -> Iterator[Span]:
    """Keys by group, kind, step and order in it; ranks whose count differs there are not paired."""
    keyed: dict[int, list[tuple[str, tuple[float, float, str, str]]]] = {}
    for rank, trace in traces.items():
        bounds = sorted((begin, number) for number, (begin, _) in trace.steps.items())
        begins = [begin for begin, _ in bounds]
        for kernel in sorted(trace.kernels):
            at = int(np.searchsorted(begins, kernel[0], side="right")) - 1
            step = bounds[at][1] if at >= 0 else -1
            keyed.setdefault(rank, []).append((f"{kernel[3]}/{kernel[2]}/{step}", kernel))
    counts = {rank: Counter(key for key, _ in told) for rank, told in keyed.items()}
    unpaired = 0
    for rank, told in keyed.items():
        seen: Counter[str] = Counter()
        for key, (start, end, kind, _) in told:
            others = {count[key] for count in counts.values() if count[key]}
            if len(others) > 1:
                unpaired += 1
                continue
            yield Span(key=(key, seen[key]), kind=kind, rank=rank, start=start, end=end)
            seen[key] += 1
    if unpaired:
        notes.append(f"{plural(unpaired, 'kernel')} could not be paired: ranks count differently.")


def _trace(file: Path, place: int) -> _Trace:
    about: list[str] = []
    trace = _Trace(rank=-1)
    for event in _events(file, about):
        _take(trace, event)
    text = "".join(about)
    rank, world = _RANK.search(text), _WORLD.search(text)
    numbers = re.findall(r"rank\D?(\d{1,7})", file.name)
    trace.rank = int(rank[1]) if rank else int(numbers[-1]) if numbers else place
    trace.world_size = int(world[1]) if world else 0
    return trace


def _take(trace: _Trace, event: dict[str, Any]) -> None:
    name, start, spent = event.get("name"), event.get("ts"), event.get("dur")
    if not isinstance(name, str) or event.get("ph") != "X":
        return
    try:
        begin, seconds = float(start) / 1e6, float(spent) / 1e6  # type: ignore[arg-type]  # guarded
    except (TypeError, ValueError):
        return
    if not (np.isfinite(begin) and 0 <= seconds < 30 * 86400):
        return
    step = _STEP.fullmatch(name)
    if step and event.get("cat") != "gpu_user_annotation":
        trace.steps[int(step[1])] = (begin, begin + seconds)
    kernel = _KERNEL.match(name)
    if not kernel or len(trace.kernels) >= _MAX_SPANS:
        return
    told = event.get("args")
    arguments = told if isinstance(told, dict) else {}
    said = str(arguments.get("Collective name") or kernel[1])
    plain = re.sub(r"[^a-z]", "", said.lower()).removesuffix("base")
    group = str(arguments.get("Process Group Name") or "")
    ranks = str(arguments.get("Process Group Ranks") or "")
    kind = _KINDS.get(plain, "other")
    trace.kernels.append((begin, begin + seconds, kind, f"{group}{ranks}"))


def _events(file: Path, about: list[str]) -> Iterator[dict[str, Any]]:
    """Events one by one; memory stays at a block. What stands around them goes to ``about``.

    Raises:
        ValueError: the trace is cut short or is no JSON.
    """
    text, within = "", False
    for block in blocks(file, most=MAX_BYTES):
        text += block.decode("utf-8", "replace")
        if not within and (begin := _BEGIN.search(text)):
            about.append(text[: begin.start()])
            text, within = text[begin.end() :], True
        if within:
            text = yield from _whole_events(text)
            if text[:1] == "]":
                break
        if len(text) > _MAX_EVENT_CHARACTERS:
            raise ValueError(f"{file} holds {len(text):,} characters that are no event")
    if text[:1] != "]":
        raise ValueError(f"{file} is cut short; let the profiler finish writing it")
    about.append(text[:_MAX_EVENT_CHARACTERS])


def _whole_events(text: str) -> Generator[dict[str, Any], None, str]:
    """The events that stand in a text as a whole; returns what is left of it."""
    decoder, at = json.JSONDecoder(), _skip(text, 0)
    while at < len(text) and text[at] != "]":
        try:
            event, at_next = decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            break
        at = _skip(text, at_next)
        if isinstance(event, dict):
            yield event
    return text[at:]


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n,":
        at += 1
    return at
