"""Synthetic profiler traces of several ranks with a known truth, in the format of Kineto."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

OLD_NAME, NEW_NAME = (
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
    "ncclDevKernel_AllReduce_Sum_f32",
)
_CLOCK_MICROSECONDS = 1.7e15
_WORK_MICROSECONDS, _STEP_MICROSECONDS, _TRANSFER_MICROSECONDS = 60_000, 100_000, 5_000
_HOST, _COMPUTE, _COMMUNICATION = 1, 7, 20


@dataclass(frozen=True, kw_only=True, slots=True)
class SyntheticTraces:
    """Ranks that compute, then reduce together at the end of every step.

    Attributes:
        ranks: number of ranks.
        steps: number of profiled steps.
        kernels: compute kernels in a step; each comes with its launch and its operator.
        late: the rank that arrives 20 ms late at every step's collective, if any.
        ahead: the rank whose clock is 30 ms ahead, if any.
        collective: the name of the collective's kernel.
    """

    ranks: int = 4
    steps: int = 30
    kernels: int = 4
    late: int | None = None
    ahead: int | None = None
    collective: str = OLD_NAME

    def write(self, folder: Path) -> None:
        """Writes one trace per rank, in gzip."""
        generator = np.random.default_rng(1)
        arrivals = _WORK_MICROSECONDS + generator.uniform(0, 500, (self.ranks, self.steps))
        if self.late is not None:
            arrivals[self.late] += 20_000
        for rank in range(self.ranks):
            trace = {
                "schemaVersion": 1,
                "deviceProperties": [{"id": 0, "name": "synthetic", "computeMajor": 9}],
                "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": self.ranks},
                "traceEvents": list(self._events(rank, arrivals)),
                "traceName": f"rank-{rank}.json",
            }
            with gzip.open(folder / f"rank-{rank}.json.gz", "wt", compresslevel=1) as out:
                json.dump(trace, out)

    def _events(
        self, rank: int, arrivals: "np.ndarray[Any, np.dtype[np.float64]]"
    ) -> Iterator[Any]:
        clock, number = _CLOCK_MICROSECONDS + 30_000 * (rank == self.ahead), 1
        for step in range(self.steps):
            begin, arrival = clock + step * _STEP_MICROSECONDS, float(arrivals[rank, step])
            yield _event(
                f"ProfilerStep#{step}", "user_annotation", begin, _STEP_MICROSECONDS - 1000, _HOST
            )
            interval = arrival / self.kernels
            for kernel in range(self.kernels):
                at = begin + kernel * interval
                yield from _launch_events(
                    number, "aten::mm", "gemm_128x128", at, interval * 0.9, _COMPUTE
                )
                number += 1
            duration = float(arrivals[:, step].max()) + _TRANSFER_MICROSECONDS - arrival
            yield from _launch_events(
                number,
                "c10d::allreduce_",
                self.collective,
                begin + arrival,
                duration,
                _COMMUNICATION,
            )
            number += 1


def _launch_events(  # noqa: PLR0917  # a call reads as a row
    number: int, operator: str, kernel: str, begin: float, duration: float, stream: int
) -> Iterator[dict[str, Any]]:
    """An operator of the host, its launch, and the kernel; all times in microseconds."""
    correlation = {"External id": number, "correlation": number}
    yield _event(operator, "cpu_op", begin - 12, 10, _HOST, **{"External id": number})
    yield _event("cudaLaunchKernel", "cuda_runtime", begin - 10, 6, _HOST, **correlation)
    on_device = {"device": 0, "stream": stream, "context": 1}
    yield _event(kernel, "kernel", begin, duration, stream, **correlation, **on_device)


def _event(
    name: str, category: str, begin: float, duration: float, thread: int, **arguments: object
) -> dict[str, Any]:
    times = {"ts": round(begin, 3), "dur": round(duration, 3)}
    process = 0 if category == "kernel" else 4000
    return {
        "ph": "X", "cat": category, "name": name, "pid": process, "tid": thread, **times,
        "args": arguments,
    }  # fmt: skip
