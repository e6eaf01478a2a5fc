"""The corpus: recordings with their truth, of cases.yaml; what is not met yet is in unmet.yaml."""

import gzip
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import yaml

from ..synthetic_trace import SyntheticTrace
from ..verdict.worker_tables import Fault, WorkerTable
from .judging import Judged, Truth, judge_file
from .made_pages import write_pages
from .made_run import MadeRun, made_run

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


_HERE = Path(__file__).parent
UNMET = _HERE / "unmet.yaml"


def _write_profile(traces: SyntheticTraces, folder: Path) -> Path:
    traces.write(folder)
    return folder


def _write_operations(trace: SyntheticTrace, folder: Path) -> Path:
    path = folder / "trace.parquet"
    pq.write_table(trace.table(), path)
    return path


def _write_workers(table: WorkerTable, folder: Path) -> Path:
    path = folder / "workers.csv"
    seconds = table.seconds()
    lines = (
        f"{worker},{step},{seconds[worker, step]}\n" for worker, step in np.ndindex(seconds.shape)
    )
    path.write_text("worker,step,step_time_s\n" + "".join(lines))
    return path


_WRITERS: dict[type, Callable[..., Path]] = {
    MadeRun: write_pages,
    SyntheticTraces: _write_profile,
    SyntheticTrace: _write_operations,
    WorkerTable: _write_workers,
}
_MAKERS: dict[str, Callable[..., Any]] = {
    "run": made_run,
    "profile": lambda fields: SyntheticTraces(**fields),
    "operations": lambda fields: SyntheticTrace(**fields),
    "workers": lambda fields: WorkerTable(
        **{**fields, "faults": tuple(Fault(**fault) for fault in fields.get("faults", ()))}
    ),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A recording and its truth.

    Attributes:
        source: from what it is made; None where it is a file.
        file: in the folder of real recordings.
        window: first and last step to report on.
        has_shares: whether the truth has shares of lost time; of a made run they follow from it.
    """

    name: str
    truth: Truth
    source: Any = None
    file: str = ""
    window: tuple[int, int] | None = None
    has_shares: bool = False

    def judged(self, recordings: Path) -> Judged:
        """Makes the recording, or finds it in the folder of recordings, and judges its report."""
        if self.source is None:
            return judge_file(recordings / self.file, self.truth, self.window)
        truth = self.truth
        if self.has_shares:
            shares = self.source.lost_shares()
            total, noise = shares.pop("total"), shares.pop("noise")
            causes = self.source.causes()
            truth = replace(truth, lost=shares, causes=causes, total=total, noise=noise)
        # Pages are on a tmpfs.
        with tempfile.TemporaryDirectory(prefix="lockstep-corpus-", dir="/dev/shm") as folder:
            path = _WRITERS[type(self.source)](self.source, Path(folder))
            return judge_file(path, truth, self.window)


def list_cases(file: Path = _HERE / "cases.yaml") -> list[Case]:
    entries = yaml.load(file.read_text(), yaml.CSafeLoader)
    return list(itertools.chain.from_iterable(map(_expand, entries)))


def _expand(entry: dict[str, Any]) -> Iterator[Case]:
    """A case of each combination of the values under ``over``."""
    axes: Mapping[str, list[Any]] = entry.pop("over", {})
    name = entry.pop("name")
    for values in itertools.product(*axes.values()):
        fields = _substitute(entry, dict(zip(axes, values, strict=True)))
        parts = [str(value).partition("__")[0] for value in values]
        yield _case("-".join([name, *parts]), fields)


def _substitute(value: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        return {name: _substitute(item, values) for name, item in value.items()}
    if isinstance(value, list):
        return [_substitute(item, values) for item in value]
    if isinstance(value, str) and value.removeprefix("$") in values:
        return values[value.removeprefix("$")] if value.startswith("$") else value
    return Template(value).substitute(values) if isinstance(value, str) else value


def _case(name: str, fields: dict[str, Any]) -> Case:
    source = next((make(fields[kind]) for kind, make in _MAKERS.items() if kind in fields), None)
    truth = fields.get("truth", {})
    return Case(
        name=name,
        truth=make_truth(truth),
        source=source,
        file=fields.get("file", ""),
        has_shares=isinstance(source, MadeRun) and truth.get("lost", True) is not None,
    )


def make_truth(fields: Mapping[str, Any]) -> Truth:
    values: dict[str, Any] = {
        name: None if value == "all" else tuple(value) if isinstance(value, list) else value
        for name, value in fields.items()
    }
    return Truth(**values)


def read_unmet() -> dict[str, str]:
    """What is wrong of cases that are not met yet, by name."""
    return dict(yaml.safe_load(UNMET.read_text()) or {})


def write_unmet(unmet: Mapping[str, str]) -> None:
    """Writes what ``read_unmet`` reads, a line a case."""
    remark = (
        "# Cases of the corpus that no report meets yet, with what is wrong; it only shrinks.\n"
    )
    lines = (f"{name}: {json.dumps(why)}\n" for name, why in sorted(unmet.items()))
    UNMET.write_text(remark + "".join(lines))
