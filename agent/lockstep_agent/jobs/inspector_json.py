"""The Inspector's JSON of one process: its collectives, steps, and the time in and between them."""

import math
import os
from collections import Counter
from dataclasses import dataclass, field

from lockstep_agent.jobs.inspector_files import RecordFile
from lockstep_agent.jobs.watched_jobs import RankTotals
from lockstep_records.file_access.foreign_files import open_foreign, read_chunks
from lockstep_records.nccl.inspector import Batch, InspectorFile, ended
from lockstep_records.nccl.periods import Collective

_MAX_LINE_BYTES = 1 << 20
_MAX_FAMILIES = 1 << 12
_MAX_NEW = 1 << 24
"""Operations by which a number may have grown between two readings; more is not believed."""
_MAX_GAP_SECONDS = 60.0
"""Between two operations; a clock that steps by more is not work."""
KINDS = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "AllGatherV": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "All2All": "all_to_all",
    "Broadcast": "broadcast",
    "Send": "send_recv",
    "Recv": "send_recv",
    "SendRecv": "send_recv",
}
"""Value of the label ``kind`` by function."""


@dataclass(slots=True)
class JsonFile(RecordFile):
    """The JSON of one process."""

    _content: InspectorFile = field(default_factory=InspectorFile)
    _inode: int = -1
    _offset: int = 0
    _rest: bytes = b""
    _skips_line: bool = False
    _newest: dict[int, int] = field(default_factory=dict)
    _collectives: Counter[str] = field(default_factory=Counter)
    _phases: dict[str, float] = field(default_factory=lambda: {"sync": 0.0, "other": 0.0})
    _reached: float | None = None
    _num_lost: int = 0

    def read(self, now: float, max_bytes: int) -> int:
        """As every file."""
        with open_foreign(self.path, owner=self.user) as descriptor:
            status = os.fstat(descriptor)
            if status.st_ino != self._inode or status.st_size < self._offset:
                self._begin(status.st_ino)
            if status.st_size - self._offset > max_bytes:  # whoever writes more is read in part
                self._offset, self._rest = status.st_size - max_bytes, b""
                self._skips_line = True
            os.lseek(descriptor, self._offset, os.SEEK_SET)
            data = b"".join(read_chunks(descriptor, max_bytes))
        self._offset += len(data)
        batch = self._content.read(self._whole_lines(data))
        if len(self._content.families) > _MAX_FAMILIES:
            self.refusal = f"it holds over {_MAX_FAMILIES:,} communicators and functions"
        elif batch.family:
            self._ingest(batch, now)
            self.growth.move(status.st_mtime, now)
            self._sum_up()
        return len(data)

    def _begin(self, inode: int) -> None:
        """Begins another file; what was counted stays."""
        self._content, self._newest, self._reached = InspectorFile(), {}, None
        self._inode, self._offset, self._rest, self._skips_line = inode, 0, b"", False

    def _whole_lines(self, data: bytes) -> bytes:
        if self._skips_line:
            _, end, data = data.partition(b"\n")
            self._skips_line = not end
        end_of_lines = data.rfind(b"\n") + 1
        lines, rest = data[:end_of_lines], data[end_of_lines:]
        if lines:
            lines, self._rest = self._rest + lines, b""
        self._rest += rest
        if len(self._rest) > _MAX_LINE_BYTES:
            self._rest, self._skips_line = b"", True
        return lines

    def _ingest(self, batch: Batch, now: float) -> None:
        families, counts, newest = self._content.families, Counter(batch.family), dict[int, int]()
        for family, operation in zip(batch.family, batch.operations, strict=True):
            newest[family] = max(newest.get(family, -1), operation.sequence)
        new = dict[int, int]()
        for family, sequence in newest.items():
            before = self._newest.get(family)
            grown = counts[family] if before is None else sequence - before
            # A number that runs backwards, or away, is none: then what is there is counted.
            new[family] = grown if 0 < grown < _MAX_NEW else counts[family]
            self._num_lost += max(0, new[family] - counts[family])
            self._newest[family] = sequence
            if kind := KINDS.get(families[family].function):
                self._collectives[kind] += new[family]
        largest = max((each.communicator for each in families), key=lambda each: each.num_ranks)
        self.rank, self.world_size = largest.rank, largest.num_ranks
        launched = (
            (Collective(each.communicator.id, each.function, o.size_bytes), family, o.sequence)
            for family, o in zip(batch.family, batch.operations, strict=True)
            if (each := families[family]).is_collective
        )
        self.steps.ingest(launched, new, now)
        self._spend(batch)

    def _spend(self, batch: Batch) -> None:
        """Sums up the time in operations and between them, by the traces."""
        spans = (
            (end / 1e6, operation.micros / 1e6)
            for operation in batch.operations
            if not math.isnan(end := ended(operation))
            and 0 < operation.micros < _MAX_GAP_SECONDS * 1e6
        )
        for end, seconds in sorted(spans):
            reached = self._reached
            if reached is None or abs(end - seconds - reached) > _MAX_GAP_SECONDS:
                self._reached = end
                continue
            self._phases["other"] += max(0.0, end - seconds - reached)
            self._phases["sync"] += max(0.0, end - max(end - seconds, reached))
            self._reached = max(reached, end)

    def _sum_up(self) -> None:
        # Who lost more records waited less, it seems: without all of them nothing is said.
        is_whole = not (sum(self._content.dropped.values()) or self._num_lost)
        steps = self.steps.completed
        self.totals = RankTotals(
            moved_seconds=self.growth.moved_seconds,
            collectives=dict(self._collectives),
            steps=None if steps is None else int(steps),
            phase_seconds=dict(self._phases) if is_whole and steps is not None else {},
        )
