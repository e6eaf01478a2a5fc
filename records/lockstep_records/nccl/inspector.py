"""The JSON that NCCL's and RCCL's Inspector writes: one file a process, one object a line.

Versions 4.0 to 4.2 and RCCL's 5.0 repeat header and metadata in each line. From 4.3 on they stand
in the line of ``dump_stats`` alone, and the lines that it counts belong to it: what is beyond them,
or before the first of such lines, is of nobody and left out. Formats:
docs/decisions/0038-nccl-plugin.md.
"""

import math
import re
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import msgspec

FILE_NAME = re.compile(r".{1,255}-pid\d{1,10}\.log")
MAX_RANKS = 1 << 20
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
_Text = Annotated[str, msgspec.Meta(max_length=1024)]


class _Header(msgspec.Struct, gc=False):
    id: _Text
    rank: Annotated[int, msgspec.Meta(ge=0, lt=MAX_RANKS)]
    n_ranks: Annotated[int, msgspec.Meta(gt=0, le=MAX_RANKS)]


class _Metadata(msgspec.Struct, gc=False):
    dump_timestamp_us: float = 0.0
    hostname: _Text = ""
    pid: int = 0


class _Kernel(msgspec.Struct, gc=False):
    kernel_stop_ts: float = 0.0


class _Trace(msgspec.Struct, gc=False):
    kernel_events: list[_Kernel] = []


class _Collective(
    msgspec.Struct,
    gc=False,
    rename={
        "function": "coll",
        "sequence": "coll_sn",
        "size_bytes": "coll_msg_size_bytes",
        "micros": "coll_exec_time_us",
        "bandwidth": "coll_algobw_gbs",
        "trace": "event_trace_ts",
    },
):
    function: _Text
    sequence: _Count
    size_bytes: _Count
    micros: float
    bandwidth: float = math.nan
    trace: _Trace | None = None


class _PointToPoint(
    msgspec.Struct,
    gc=False,
    rename={
        "function": "p2p",
        "sequence": "p2p_sn",
        "size_bytes": "p2p_msg_size_bytes",
        "micros": "p2p_exec_time_us",
        "bandwidth": "p2p_algobw_gbs",
        "trace": "event_trace_ts",
    },
):
    function: _Text
    sequence: _Count
    size_bytes: _Count
    micros: float
    bandwidth: float = math.nan
    trace: _Trace | None = None


Operation = _Collective | _PointToPoint
"""``sequence`` counts in the family. ``micros`` are from the begin of its kernel to the end, with
the wait for others; ``bandwidth`` is as recorded, in GB/s, NaN without one."""


def ended(operation: Operation) -> float:
    """When the end of the last channel was noticed, by the clock of the host.

    Microseconds since the epoch; NaN without a trace, and where no end was.
    """
    if operation.trace is None:
        return math.nan
    events = operation.trace.kernel_events
    return max((kernel.kernel_stop_ts for kernel in events), default=0.0) or math.nan


class _Stats(msgspec.Struct, gc=False):
    coll_records: _Count = 0
    p2p_records: _Count = 0
    proxy_records: _Count = 0
    coll_dropped_total: _Count = 0
    p2p_dropped_total: _Count = 0


class _Line(msgspec.Struct, gc=False):
    header: _Header | None = None
    metadata: _Metadata | None = None
    coll_perf: _Collective | None = None
    p2p_perf: _PointToPoint | None = None
    dump_stats: _Stats | None = None


_DECODER = msgspec.json.Decoder(_Line)


class Communicator(NamedTuple):
    """A communicator as a member sees it; ``rank`` is its rank in there."""

    id: str
    rank: int
    num_ranks: int


class Family(NamedTuple):
    """Operations that are numbered together: a function in a communicator."""

    communicator: Communicator
    function: str
    is_collective: bool


class Batch(NamedTuple):
    """Operations in the order of the file.

    Attributes:
        family: index of each in ``InspectorFile.families``.
        written: when each was written, by the clock of the host: microseconds since the epoch.
    """

    family: list[int]
    operations: list[Operation]
    written: list[float]


class _Families(dict[tuple[str, int, int, str, bool], int]):
    def __missing__(self, key: tuple[str, int, int, str, bool]) -> int:
        self[key] = len(self)
        return self[key]


@dataclass(slots=True)
class InspectorFile:
    """Reads a file in blocks of whole lines, in the order in which they were written.

    Attributes:
        hostname, pid: of the process; empty and 0 until a line has them.
        num_broken: lines that are none of the format's.
        num_without_context: lines of which none tells the communicator.
        dropped: operations that the Inspector dropped, by the id of the communicator.
    """

    hostname: str = ""
    pid: int = 0
    num_broken: int = 0
    num_without_context: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    _families: _Families = field(default_factory=_Families)
    _context: tuple[_Header, _Metadata] | None = None
    _num_left: int = 0

    @property
    def families(self) -> list[Family]:
        """The families in the order in which they were seen."""
        return [
            Family(Communicator(id_, rank, num_ranks), function, is_collective)
            for id_, rank, num_ranks, function, is_collective in self._families
        ]

    def read(self, block: bytes) -> Batch:
        """The operations of a block."""
        # Three lists: a tuple an operation would keep the garbage collector busy.
        headers, origins, operations = list[_Header](), list[_Metadata](), list[Operation]()
        for line in self._lines(block):
            if line.dump_stats is not None:
                self._begin_dump(line)
                continue
            header, origin, operation = line.header, line.metadata, line.coll_perf or line.p2p_perf
            if header is None or origin is None:
                if self._context is None or not self._num_left:
                    self.num_without_context += 1
                    continue
                header, origin = self._context
                self._num_left -= 1
            if operation is not None:
                headers.append(header)
                origins.append(origin)
                operations.append(operation)
        if origins and not self.hostname:
            self.hostname, self.pid = origins[0].hostname, origins[0].pid
        families = self._families
        family = [
            families[h.id, h.rank, h.n_ranks, o.function, type(o) is _Collective]
            for h, o in zip(headers, operations, strict=True)
        ]
        return Batch(family, operations, [origin.dump_timestamp_us for origin in origins])

    def _lines(self, block: bytes) -> list[_Line]:
        try:
            return _DECODER.decode_lines(block)
        except (msgspec.MsgspecError, RecursionError):
            lines = []
        for text in block.split(b"\n"):
            try:
                if text.strip():
                    lines.append(_DECODER.decode(text))
            except (msgspec.MsgspecError, RecursionError):
                self.num_broken += 1
        return lines

    def _begin_dump(self, line: _Line) -> None:
        assert line.dump_stats is not None
        self._context, self._num_left = None, 0
        if line.header is None or line.metadata is None:
            self.num_broken += 1
            return
        stats = line.dump_stats
        self.dropped[line.header.id] = stats.coll_dropped_total + stats.p2p_dropped_total
        self._context = line.header, line.metadata
        self._num_left = stats.coll_records + stats.p2p_records + stats.proxy_records
