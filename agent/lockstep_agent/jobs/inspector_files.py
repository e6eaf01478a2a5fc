"""The Inspector's files of a process, read from where the last reading ended.

A file that does not grow is the only sign of silence there is: the Inspector writes completed
operations, and a GPU that completes none keeps its old text.
"""

import os
import statistics
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from lockstep_agent.jobs.watched_jobs import RankTotals
from lockstep_records.file_access.foreign_files import open_foreign, read_chunks
from lockstep_records.nccl.inspector_text import MAX_BYTES, read_samples
from lockstep_records.nccl.periods import Collective, find_period

_WINDOW, _SEARCHES_EVERY = 1024, 8


@dataclass(slots=True)
class Growth:
    """When something last grew.

    Attributes:
        moved_seconds: wall clock; None before it was seen to hold anything.
        longest_seconds: between two growths.
        moves: how often it was seen to have grown.
    """

    moved_seconds: float | None = None
    longest_seconds: float = 0.0
    moves: int = 0

    def move(self, seconds: float, now: float) -> None:
        """It has grown at a time that somebody else's clock says."""
        seconds = min(seconds, now)
        if self.moved_seconds is not None:
            seconds = max(seconds, self.moved_seconds)
            self.longest_seconds = max(self.longest_seconds, seconds - self.moved_seconds)
        self.moved_seconds = seconds
        self.moves += 1


@dataclass(slots=True)
class PeriodSteps:
    """Steps as the period of a rank's collectives, counted by the numbers of one family of them."""

    seconds: float | None = None
    completed: float | None = None
    _window: deque[tuple[Collective, int, int]] = field(
        default_factory=lambda: deque[tuple[Collective, int, int]](maxlen=_WINDOW)
    )
    _anchor: tuple[int, float] | None = None
    _searches: int = 0
    _base: tuple[float, float] = (0.0, 0.0)

    def ingest(
        self, launched: Iterable[tuple[Collective, int, int]], new: Mapping[int, int], now: float
    ) -> None:
        """Takes in collectives, each with its family and its number there.

        Args:
            launched: in the order of the file.
            new: by how much each family's number has grown by them.
            now: in seconds.
        """
        self._window.extend(launched)
        if self._searches % _SEARCHES_EVERY == 0 or self._anchor is None:
            self._anchor = self._find_anchor() or self._anchor
        self._searches += 1
        if self._anchor is None:
            return
        family, per_step = self._anchor
        if self.completed is None:
            self.completed, self._base = 0.0, (0.0, now)
        self.completed += new.get(family, 0) / per_step
        steps, since = self._base
        if self.completed - steps >= 1:
            self.seconds = (now - since) / (self.completed - steps)
            self._base = (self.completed, now)

    def _find_anchor(self) -> tuple[int, float] | None:
        """The family with most collectives, and by how much its number grows in a step."""
        period = find_period([collective for collective, *_ in self._window])
        if period is None:
            return None
        family = Counter(family for _, family, _ in self._window).most_common(1)[0][0]
        numbers, following = list[int](), -1
        rows = list(self._window)
        starts = set(period.starts)
        for index in range(len(rows) - 1, -1, -1):
            following = rows[index][2] if rows[index][1] == family else following
            if index in starts and following >= 0:
                numbers.append(following)
        grown = [late - early for early, late in pairwise(numbers[::-1]) if late > early]
        return (family, statistics.median(grown)) if grown else None


@dataclass(slots=True)
class RecordFile:
    """A file of the Inspector, and what it has told so far.

    Args:
        user: who has to own file and folder.
        pid: of its process on this node; -1 where nothing tells it.

    Attributes:
        rank: in the largest communicator, which has ``world_size``; None before one.
        job_id: of Slurm, where it says one.
        label: the GPU in words, where it says one.
        refusal: why it is not read any further; empty while it is.
    """

    path: Path
    user: int
    pid: int
    growth: Growth = field(default_factory=Growth)
    totals: RankTotals = field(default_factory=RankTotals)
    steps: PeriodSteps = field(default_factory=PeriodSteps)
    rank: int | None = None
    world_size: int | None = None
    job_id: str = ""
    label: str = ""
    refusal: str = ""

    def read(self, now: float, max_bytes: int) -> int:
        """Takes in what is new, at most so many bytes of it, the newest; returns their number.

        Raises:
            ForeignFileError: it is not a plain file, or another user's.
            OSError: it cannot be read.
        """
        raise NotImplementedError


@dataclass(slots=True)
class TextFile(RecordFile):
    """The Prometheus text of a GPU, which the Inspector rewrites only after some operation."""

    _signature: tuple[int, int] = (0, 0)

    def read(self, now: float, max_bytes: int) -> int:
        """As every file, if it has changed."""
        with open_foreign(self.path, owner=self.user) as descriptor:
            status = os.fstat(descriptor)
            signature = (status.st_ino, status.st_mtime_ns)
            if signature == self._signature:
                return 0
            text = b"".join(read_chunks(descriptor, min(MAX_BYTES, max_bytes)))
        self._signature = signature
        sample = next((each for each in read_samples(text) if each.value > 0), None)
        if sample is not None:  # another is half a text
            labels = {name: value for name, value in sample.labels.items() if value != "unknown"}
            self.job_id = labels.get("slurm_job_id", "")
            self.label = labels.get("gpu") or labels.get("gpu_device_id", "")
            self.growth.move(status.st_mtime, now)
        return len(text)
