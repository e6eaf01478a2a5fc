"""Reads the Inspector's Prometheus text, by which no rank can be judged: it holds means."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lockstep_records.file_access.compressed import read_content
from lockstep_records.nccl.inspector_text import (
    FILE_NAME,
    MAX_BYTES,
    SECONDS_NAMES,
    Sample,
    read_samples,
)
from lockstep_records.text.printable import printable
from lockstep_reports.readers import ReadOptions
from lockstep_reports.readers.files import MAX_FILES
from lockstep_reports.recording.recording import Recording
from lockstep_reports.recording.steps import timed_steps
from lockstep_reports.wording import duration, plural

_OLD_SECONDS = 90.0  # three intervals of its dumps
# The shortest mean of a group of ranks, in terms of the next, from which on it is worth a look.
_MAX_SHORTEST_RATIO = 0.7
_GROUP = ("slurm_job_id", "comm_name", "nranks", "collective", "message_size")


def recognises(path: Path) -> bool:
    """Whether it is such a file, or a folder with some, in it or in its folders."""
    return bool(_files(path))


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path] if FILE_NAME.fullmatch(path.name) else []
    pattern = "nccl_inspector_metrics_*.prom"
    found = sorted({*path.glob(pattern), *path.glob(f"*/{pattern}")})
    return [each for each in found[:MAX_FILES] if each.is_file() and FILE_NAME.fullmatch(each.name)]


def read(path: Path, options: ReadOptions) -> Recording:
    """A recording without steps that says what is there; raises as ``ReaderModule.read``."""
    files = _files(path)
    samples = [each for file in files for each in read_samples(read_content(file, MAX_BYTES))]
    times = [each for each in samples if each.name in SECONDS_NAMES]
    ages = [options.now_seconds - file.stat().st_mtime for file in files]
    steps = timed_steps(printable(path.name), [0], np.array([], np.int64), np.empty((1, 0)))
    return Recording(
        source_kind="inspector_means",
        path=path,
        steps=steps,
        doubts=tuple(_doubts(times, ages, len(files))),
    )


def _doubts(times: Sequence[Sample], ages: Sequence[float], num_files: int) -> Iterator[str]:
    if any(each.is_single for each in times):
        yield (
            f"{plural(num_files, 'file')} of the Inspector's Prometheus text of NCCL 2.29 hold the "
            "latest operation of each communicator only; ranks are compared by the steps of its "
            "JSON."
        )
    else:
        yield (
            "Only means over all operations of an interval are here, and no rank: a verdict needs "
            "the Inspector's JSON of all ranks, or Lockstep's plugin."
        )
    if min(ages, default=0.0) > _OLD_SECONDS:
        yield (
            f"The newest file is {duration(min(ages))} old: a GPU that completes nothing keeps its "
            "old file, so whether the job is well is unknown."
        )
    yield from _shortest(times)


def _shortest(times: Sequence[Sample]) -> Iterator[str]:
    """Whose mean is the shortest of a group, which waits least; none where groups mix."""
    groups: dict[tuple[str, ...], list[Sample]] = defaultdict(list)
    for each in times:
        groups[tuple(each.labels.get(name, "") for name in _GROUP)].append(each)
    found = []
    for key, members in groups.items():
        # Several communicators of one name and size are no group in which ranks compare.
        if len(members) == 1 or str(len(members)) != key[2] or members[0].is_single:
            continue
        first, second = sorted(members, key=lambda each: each.value)[:2]
        if first.value < _MAX_SHORTEST_RATIO * second.value:
            found.append((second.value - first.value, first))
    if found:
        _, sample = max(found, key=lambda pair: pair[0])
        where = " ".join(sample.labels.get(name, "") for name in ("node", "gpu"))
        yield (
            f"{printable(where, 100)} has the lowest mean time of its communicator: who comes last"
            " waits least, so look there first."
        )
