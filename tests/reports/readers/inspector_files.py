"""Files of the Inspector as its documents describe them, of jobs whose late ranks are planted.

Every rank computes, then meets the others of a communicator; nobody leaves before the last one has
come and the transfer is over.
"""

import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

EPOCH_SECONDS = 1_790_000_000.0
MIB = 1 << 20


class Planned(NamedTuple):
    """An operation of a step; milliseconds of compute before it and of its transfer."""

    group: str
    function: str
    size_bytes: int
    compute: float
    transfer: float
    is_overlapped: bool = False


class Recorded(NamedTuple):
    group: tuple[str, int]
    function: str
    sequence: int
    size_bytes: int
    begin: float
    end: float


DATA_PARALLEL = (
    Planned("world", "AllReduce", 32 * MIB, 60, 3),
    Planned("world", "AllReduce", 24 * MIB, 60, 3),
)
SHARDED = (
    Planned("world", "AllGather", 16 * MIB, 4, 2),
    Planned("world", "AllGather", 16 * MIB, 40, 2),
    Planned("world", "ReduceScatter", 16 * MIB, 70, 2),
    Planned("world", "AllReduce", 16384, 5, 0.1),
)
OVERLAPPED = (
    *(Planned("world", "AllReduce", 25 * MIB, 12, 3, is_overlapped=True) for _ in range(5)),
    Planned("world", "AllReduce", 7 * MIB, 12, 1),
)
TENSOR_AND_DATA = (
    *(Planned("tensor", "AllReduce", 8 * MIB, 10, 0.5) for _ in range(8)),
    Planned("data", "AllReduce", 64 * MIB, 5, 6),
    Planned("world", "AllReduce", 65536, 2, 0.2),
)


@dataclass(frozen=True, kw_only=True)
class InspectedJob:
    """A job and its Inspector.

    Attributes:
        late: milliseconds of compute that a rank has beyond the others before an operation, by
            rank, step and number of the operation in the step.
        slow: factor of the transfer in a group, by its name and number.
        ring: records that a dump keeps of a communicator.
        clocks: seconds by which the clock of a rank's host is ahead.
        pids: of the ranks.
    """

    num_ranks: int = 8
    steps: int = 60
    plan: tuple[Planned, ...] = SHARDED
    late: Callable[[int, int, int], float] = lambda _rank, _step, _operation: 0.0
    slow: Callable[[str, int], float] = lambda _group, _number: 1.0
    version: str = "v4.2"
    has_traces: bool = False
    interval_seconds: float = 1.0
    ring: int = 1024
    clocks: dict[int, float] = field(default_factory=dict)
    seed: int = 1
    pids: Sequence[int] = range(100, 1 << 20)

    def groups(self, name: str) -> list[list[int]]:
        ranks = range(self.num_ranks)
        if name == "tensor":
            return [[rank, rank + 1] for rank in ranks[::2]]
        return [list(ranks[part::2]) for part in (0, 1)] if name == "data" else [list(ranks)]

    def record(self) -> list[list[Recorded]]:
        rng = np.random.default_rng(self.seed)
        now = np.full(self.num_ranks, EPOCH_SECONDS)
        busy, numbers = now.copy(), Counter[tuple[str, int, str]]()
        records: list[list[Recorded]] = [[] for _ in range(self.num_ranks)]
        for step in range(self.steps):
            for index, planned in enumerate(self.plan):
                late = [self.late(rank, step, index) for rank in range(self.num_ranks)]
                now += (planned.compute * rng.lognormal(0, 0.02, self.num_ranks) + late) / 1e3
                for number, members in enumerate(self.groups(planned.group)):
                    begin = np.maximum(now[members], busy[members])
                    slow = self.slow(planned.group, number)
                    end = begin.max() + slow * planned.transfer * rng.lognormal(0, 0.03) / 1e3
                    key = (planned.group, number, planned.function)
                    for rank, at in zip(members, begin.tolist(), strict=True):
                        records[rank].append(
                            Recorded(key[:2], key[2], numbers[key], planned.size_bytes, at, end)
                        )
                    numbers[key] += 1
                    busy[members] = end
                    if not planned.is_overlapped:
                        now[members] = end
        return records

    def write(self, folder: Path, *, without: tuple[int, ...] = ()) -> Path:
        """Its files, but for those of some ranks."""
        folder.mkdir(parents=True, exist_ok=True)
        for rank, records in enumerate(self.record()):
            if rank not in without:
                lines = (json.dumps(line) + "\n" for line in self._lines(rank, records))
                (folder / f"node-{rank // 8}-pid{self.pids[rank]}.log").write_text("".join(lines))
        return folder

    def _lines(self, rank: int, records: list[Recorded]) -> Iterator[dict[str, Any]]:
        dumps: dict[tuple[int, tuple[str, int]], list[Recorded]] = defaultdict(list)
        for record in records:
            number = int((record.end - EPOCH_SECONDS) / self.interval_seconds)
            dumps[number, record.group].append(record)
        clock, dropped = self.clocks.get(rank, 0.0), Counter[tuple[str, int]]()
        has_context = self.version in {"v4.3", "v4.4"}
        for (number, group), dump in dumps.items():
            members = self.groups(group[0])[group[1]]
            written = EPOCH_SECONDS + (number + 1) * self.interval_seconds + clock
            dropped[group] += len(dump[: -self.ring])
            context = {
                "header": {
                    "id": f"0x{zlib.crc32(f'{group}{self.seed}'.encode()):x}",
                    "rank": members.index(rank),
                    "n_ranks": len(members),
                    "nnodes": 1,
                },
                "metadata": {
                    "inspector_output_format_version": self.version,
                    "rec_mechanism": "nccl_profiler_interface",
                    "dump_timestamp_us": round(written * 1e6),
                    "hostname": f"node-{rank // 8}",
                    "pid": self.pids[rank],
                },
            }
            if has_context:
                stats = {
                    "coll_records": len(dump[-self.ring :]),
                    "coll_dropped_total": dropped[group],
                }
                yield {**context, "dump_stats": stats}
            for record in dump[-self.ring :]:
                operation = {"coll_perf": self._operation(record, len(members), clock)}
                yield operation if has_context else {**context, **operation}

    def _operation(self, record: Recorded, num_ranks: int, clock: float) -> dict[str, Any]:
        micros = max(1, round((record.end - record.begin) * 1e6))
        shards = num_ranks if record.function in {"AllGather", "ReduceScatter"} else 1
        operation: dict[str, Any] = {
            "coll": record.function,
            "coll_sn": record.sequence,
            "coll_msg_size_bytes": record.size_bytes,
            "coll_exec_time_us": micros,
            "coll_timing_source": "kernel_gpu",
            "coll_algobw_gbs": record.size_bytes * shards / micros / 1e3,
        }
        if self.has_traces:
            begin, end = (round((at + clock) * 1e6) for at in (record.begin, record.end))
            kernel = {"channel_id": 0, "kernel_start_ts": begin, "kernel_stop_ts": end + 20}
            operation["event_trace_ts"] = {"coll_start_ts": begin - 40, "kernel_events": [kernel]}
        return operation
