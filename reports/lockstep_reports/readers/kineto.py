"""Reads PyTorch profiler (Kineto) traces of several ranks: their NCCL kernels and their steps."""

import json
import re
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lockstep_records.file_access.compressed import blocks
from lockstep_reports.readers import ReadOptions
from lockstep_reports.readers.collective_join import join
from lockstep_reports.readers.files import files_of, head, holds_any
from lockstep_reports.recording.recording import CollectiveLog, Recording, Span, collective_kind
from lockstep_reports.recording.steps import MAX_CELLS, timed_steps
from lockstep_reports.wording import plural

MAX_BYTES = 1 << 33
_MAX_EVENT_CHARACTERS = 1 << 24
_MAX_KERNELS = 1 << 22
_MAX_SECONDS = 30 * 86400
_BEGIN = re.compile(r'"traceEvents"\s*:\s*\[')
_DISTRIBUTED = r'"distributedInfo"\s*:\s*\{[^{}]*?"%s"\s*:\s*(\d{1,7})\b'
# Since NCCL 2.19 kernels are called ncclDevKernel; tools that match ncclKernel only find none.
_KERNEL = re.compile(r"nccl(?:Dev)?Kernel_([A-Za-z]+)")
_STEP = re.compile(r"ProfilerStep#(\d{1,15})")


class _Kernel(NamedTuple):
    """One NCCL kernel; begin and end in seconds. A tuple, because traces hold millions."""

    begin: float
    end: float
    kind: str
    group: str


@dataclass(slots=True)
class _Trace:
    """One rank's trace; ``steps`` are begin and end in seconds by step number."""

    rank: int
    world_size: int = 0
    kernels: list[_Kernel] = field(default_factory=list)
    steps: dict[int, tuple[float, float]] = field(default_factory=dict)


def recognises(path: Path) -> bool:
    """Whether it is a profiler trace, or a folder with some."""
    return holds_any(path, _is_trace)


def _is_trace(path: Path) -> bool:
    begin = head(path).lstrip()
    return begin[:1] == b"{" and (b'"traceEvents"' in begin or b'"deviceProperties"' in begin)


def read(path: Path, options: ReadOptions) -> Recording:
    """Profiler steps, and collectives paired; raises as ``ReaderModule.read``."""
    del options
    notes: list[str] = []
    traces: dict[int, _Trace] = {}
    for index, file in enumerate(file for file in files_of(path) if _is_trace(file)):
        try:
            trace = _read_trace(file, index)
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
    if len(ranks) * len(numbers) > MAX_CELLS:
        raise ValueError(f"{path} has {len(ranks):,} ranks x {len(numbers):,} steps; split it")
    seconds = np.full((len(ranks), len(numbers)), np.nan)
    sync = seconds.copy()
    column_of = {number: column for column, number in enumerate(numbers)}
    for row, rank in enumerate(ranks):
        kernels = sorted(traces[rank].kernels)
        begins = np.array([kernel.begin for kernel in kernels])
        lengths = np.array([kernel.end - kernel.begin for kernel in kernels])
        for number, (begin, end) in traces[rank].steps.items():
            first, last = np.searchsorted(begins, (begin, end))
            seconds[row, column_of[number]] = end - begin
            sync[row, column_of[number]] = lengths[first:last].sum()
    steps = timed_steps(
        path.name.partition(".")[0],
        ranks,
        np.array(numbers, dtype=np.int64),
        seconds,
        sync=sync,
        world_size=max(max(ranks) + 1, *(trace.world_size for trace in traces.values())),
        notes=notes,
    )
    return Recording(source_kind="kineto", path=path, steps=steps, collectives=collectives)


def _spans(traces: dict[int, _Trace], notes: list[str]) -> Iterator[Span]:
    """Collectives with keys by group, kind, step and order in the step.

    Kernels of which the ranks recorded different numbers in a step are left out.
    """
    keyed = {rank: list(_key_kernels(trace)) for rank, trace in traces.items()}
    numbers: dict[str, set[int]] = {}
    for kernels in keyed.values():
        for key, number in Counter(key for key, _ in kernels).items():
            numbers.setdefault(key, set()).add(number)
    num_unpaired = 0
    for rank, kernels in keyed.items():
        num_yielded: Counter[str] = Counter()
        for key, (begin, end, kind, _) in kernels:
            if len(numbers[key]) > 1:
                num_unpaired += 1
                continue
            yield Span(key=(key, num_yielded[key]), kind=kind, rank=rank, start=begin, end=end)
            num_yielded[key] += 1
    if num_unpaired:
        notes.append(
            f"{plural(num_unpaired, 'kernel')} could not be paired: ranks count differently."
        )


def _key_kernels(trace: _Trace) -> Iterator[tuple[str, _Kernel]]:
    """The kernels by time, each with its group, kind and step as text."""
    bounds = sorted((begin, number) for number, (begin, _) in trace.steps.items())
    begins = [begin for begin, _ in bounds]
    for kernel in sorted(trace.kernels):
        index = int(np.searchsorted(begins, kernel.begin, side="right")) - 1
        step = bounds[index][1] if index >= 0 else -1
        yield f"{kernel.group}/{kernel.kind}/{step}", kernel


def _read_trace(file: Path, index: int) -> _Trace:
    """One rank's trace; ``index`` of the file is the rank where nothing else shows it."""
    headers: list[str] = []
    trace = _Trace(rank=-1)
    for event in _events(file, headers):
        _add_event(trace, event)
    text = "".join(headers)
    rank, world = (re.search(_DISTRIBUTED % name, text) for name in ("rank", "world_size"))
    numbers = re.findall(r"rank\D?(\d{1,7})", file.name)
    trace.rank = int(rank[1]) if rank else int(numbers[-1]) if numbers else index
    trace.world_size = int(world[1]) if world else 0
    return trace


def _add_event(trace: _Trace, event: dict[str, Any]) -> None:
    """Adds an event to the trace if it is a step or an NCCL kernel."""
    name, start, duration = event.get("name"), event.get("ts"), event.get("dur")
    if not isinstance(name, str) or event.get("ph") != "X":
        return
    try:
        begin, seconds = float(start) / 1e6, float(duration) / 1e6  # type: ignore[arg-type]  # guarded
    except (TypeError, ValueError):
        return
    if not (np.isfinite(begin) and 0 <= seconds < _MAX_SECONDS):
        return
    # A step is recorded twice: by the host, and as the span of its kernels on the GPU.
    step = _STEP.fullmatch(name)
    if step and event.get("cat") != "gpu_user_annotation":
        trace.steps[int(step[1])] = (begin, begin + seconds)
    kernel = _KERNEL.match(name)
    if not kernel or len(trace.kernels) >= _MAX_KERNELS:
        return
    arguments = event.get("args")
    arguments = arguments if isinstance(arguments, dict) else {}
    operation = str(arguments.get("Collective name") or kernel[1])
    group = str(arguments.get("Process Group Name") or "")
    ranks = str(arguments.get("Process Group Ranks") or "")
    kind = collective_kind(operation) or "other"
    trace.kernels.append(_Kernel(begin, begin + seconds, kind, f"{group}{ranks}"))


def _events(file: Path, headers: list[str]) -> Iterator[dict[str, Any]]:
    """Events one by one, in the memory of a block; ``headers`` takes the text around them.

    Raises ValueError where the trace is cut short or is not JSON.
    """
    text, is_within = "", False
    for block in blocks(file, most=MAX_BYTES):
        text += block.decode("utf-8", "replace")
        if not is_within and (begin := _BEGIN.search(text)):
            headers.append(text[: begin.start()])
            text, is_within = text[begin.end() :], True
        if is_within:
            text = yield from _complete_events(text)
            if text[:1] == "]":
                break
        if len(text) > _MAX_EVENT_CHARACTERS:
            raise ValueError(f"{file} holds {len(text):,} characters that are no event")
    if text[:1] != "]":
        raise ValueError(f"{file} is cut short; let the profiler finish writing it")
    headers.append(text[:_MAX_EVENT_CHARACTERS])


def _complete_events(text: str) -> Generator[dict[str, Any], None, str]:
    """The complete events of a text; returns the rest of it."""
    decoder, offset = json.JSONDecoder(), _skip_separators(text, 0)
    while offset < len(text) and text[offset] != "]":
        try:
            event, end = decoder.raw_decode(text, offset)
        except json.JSONDecodeError:
            break
        except RecursionError as error:
            raise ValueError("an event of it is nested too deeply") from error
        offset = _skip_separators(text, end)
        if isinstance(event, dict):
            yield event
    return text[offset:]


def _skip_separators(text: str, offset: int) -> int:
    while offset < len(text) and text[offset] in " \t\r\n,":
        offset += 1
    return offset
