"""The JSON that NCCL's and RCCL's Inspector writes: one file a process, one object a line.

Versions 4.0 to 4.2 and RCCL's 5.0 repeat header and metadata in each line. From 4.3 on they stand
in the line of ``dump_stats`` alone, and the lines that it counts belong to it: what is beyond them,
or before the first of such lines, is of nobody and left out. Formats:
docs/decisions/0037-watching-without-lines.md.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import msgspec

FILE_NAME = re.compile(r".{1,255}-pid\d{1,10}\.log")
MAX_RANKS = 1 << 20
_MAX_SECONDS = 30 * 86400.0
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
_Text = Annotated[str, msgspec.Meta(max_length=1024)]


class _Header(msgspec.Struct, gc=False):
    id: _Text
    rank: Annotated[int, msgspec.Meta(ge=0, lt=MAX_RANKS)]
    n_ranks: Annotated[int, msgspec.Meta(gt=0, le=MAX_RANKS)]
    nnodes: int = 0
    comm_name: _Text = ""


class _Metadata(msgspec.Struct, gc=False):
    inspector_output_format_version: _Text = ""
    dump_timestamp_us: float = 0.0
    hostname: _Text = ""
    pid: int = 0


class _Kernel(msgspec.Struct, gc=False):
    kernel_start_ts: float = 0.0
    kernel_stop_ts: float = 0.0


class _Trace(msgspec.Struct, gc=False):
    kernel_events: list[_Kernel] = []


class _Collective(msgspec.Struct, gc=False):
    coll: _Text
    coll_sn: _Count
    coll_msg_size_bytes: _Count
    coll_exec_time_us: float
    coll_algobw_gbs: float | None = None
    event_trace_ts: _Trace | None = None


class _PointToPoint(msgspec.Struct, gc=False):
    p2p: _Text
    p2p_sn: _Count
    p2p_msg_size_bytes: _Count
    p2p_exec_time_us: float
    p2p_peer: int = -1
    event_trace_ts: _Trace | None = None


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
    name: str


class Operation(NamedTuple):
    """One operation as a rank recorded it.

    Attributes:
        sequence: its number among those of the function in the communicator.
        is_collective: else it is a send or a receive.
        seconds: from the begin of its kernel to the end, the wait for others included.
        ended: when the end was noticed, by the clock of the host: seconds since the epoch; NaN
            without a trace.
        written: when it was written, in the same way.
        bandwidth_ratio: recorded bandwidth in terms of what bytes and time give; NaN without one.
    """

    communicator: Communicator
    function: str
    sequence: int
    size_bytes: int
    is_collective: bool
    seconds: float
    ended: float
    written: float
    bandwidth_ratio: float


@dataclass(slots=True)
class InspectorFile:
    """Reads a file in blocks of whole lines, in the order in which they were written.

    Attributes:
        hostname, pid: of the process; empty and 0 until a line has them.
        versions: of the format.
        num_broken: lines that are none of the format's, or have impossible values.
        num_without_context: lines of which none tells the communicator.
        dropped: operations that the Inspector dropped, by the id of the communicator.
    """

    hostname: str = ""
    pid: int = 0
    versions: set[str] = field(default_factory=set)
    num_broken: int = 0
    num_without_context: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    _communicators: dict[tuple[str, int], Communicator] = field(default_factory=dict)
    _context: tuple[_Header, _Metadata] | None = None
    _num_left: int = 0

    def read(self, block: bytes) -> Iterator[Operation]:
        """The operations of a block."""
        try:
            lines = _DECODER.decode_lines(block)
        except (msgspec.MsgspecError, RecursionError):
            lines = list(self._whole_lines(block))
        for line in lines:
            header, metadata = line.header, line.metadata
            if line.dump_stats is not None:
                self._begin_dump(line)
                continue
            if header is None or metadata is None:
                if self._context is None or not self._num_left:
                    self.num_without_context += 1
                    continue
                header, metadata = self._context
                self._num_left -= 1
            operation = self._operation(line, header, metadata)
            if operation is not None:
                yield operation

    def _whole_lines(self, block: bytes) -> Iterator[_Line]:
        for text in block.split(b"\n"):
            try:
                if text.strip():
                    yield _DECODER.decode(text)
            except (msgspec.MsgspecError, RecursionError):
                self.num_broken += 1

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

    def _operation(self, line: _Line, header: _Header, metadata: _Metadata) -> Operation | None:
        """The operation of a line; None for a line about something else."""
        key = header.id, header.rank
        communicator = self._communicators.get(key)
        if communicator is None:
            name = "" if header.comm_name == "unknown" else header.comm_name
            communicator = Communicator(header.id, header.rank, header.n_ranks, name)
            self._communicators[key] = communicator
            self.hostname, self.pid = metadata.hostname, metadata.pid
            self.versions.add(metadata.inspector_output_format_version)
        written = metadata.dump_timestamp_us / 1e6
        if (own := line.coll_perf) is not None:
            micros, size, trace = own.coll_exec_time_us, own.coll_msg_size_bytes, own.event_trace_ts
            bandwidth, function, sequence = own.coll_algobw_gbs, own.coll, own.coll_sn
        elif (pair := line.p2p_perf) is not None:
            micros, size, trace = (
                pair.p2p_exec_time_us,
                pair.p2p_msg_size_bytes,
                pair.event_trace_ts,
            )
            bandwidth, function, sequence = None, pair.p2p, pair.p2p_sn
        else:
            return None
        if not (0 < micros < _MAX_SECONDS * 1e6 and header.rank < header.n_ranks):
            self.num_broken += 1
            return None
        ended = math.nan
        if trace is not None and trace.kernel_events:
            ended = max(kernel.kernel_stop_ts for kernel in trace.kernel_events) / 1e6 or math.nan
        ratio = bandwidth * micros * 1e3 / size if bandwidth and size else math.nan
        return Operation(
            communicator, function, sequence, size, own is not None, micros / 1e6, ended, written,
            ratio,
        )  # fmt: skip
