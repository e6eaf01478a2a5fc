"""Exports the operation rows of an attempt as Parquet, in the columns of the published traces.

Columns and file names are those of https://github.com/ByteDance-Seed/StragglerAnalysis: one row an
operation, times in seconds from the start of its step, -1 where a column does not apply.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lockstep_records.file_access.atomic_file import write_atomically
from lockstep_records.files import operations
from lockstep_records.files.jobs import list_pages
from lockstep_records.page.reader import Page, PageError, read_page
from lockstep_reports.arrays import dtype_of

COLUMNS = {
    "dp_rank": pa.int32(),
    "stage": pa.int32(),
    "rank": pa.int32(),
    "step": pa.int64(),
    "optype": pa.dictionary(pa.int32(), pa.string()),
    "start_ts": pa.float64(),
    "duration": pa.float64(),
    "seq_id": pa.int32(),
    "mc": pa.int32(),
    "mb_id": pa.int32(),
    "gmc": pa.int32(),
}
Columns: TypeAlias = dict[str, NDArray[Any]]
_COMPUTE = ("forward-compute", "backward-compute")
_CHUNK_OPERATIONS = (*_COMPUTE, "params-all-gather", "grads-reduce-scatter")
_DTYPE = dtype_of(operations.OPERATION)


@dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    """What was written: the two files, and the number of rows, steps and ranks in them."""

    trace: Path
    meta: Path
    rows: int
    steps: int
    ranks: int


def export_operations(attempt: Path, name: str, folder: Path) -> Export:
    """Writes ``trace-NAME.parquet`` and ``meta-NAME.yaml`` into a folder, which is made.

    Only completed steps that every exported rank has recorded are kept. Of the ranks that share a
    data-parallel and a pipeline coordinate the first is exported, as in the published traces.

    Raises:
        ValueError: no rank has recorded an operation, or no step is common to all.
        OSError: the folder cannot be written.
    """
    pages = _exported_pages(attempt)
    sizes = {
        axis: 1 + max(page.identity["mesh"].get(axis, 0) for page in pages)
        for axis in ("dp", "fsdp", "pp")
    }
    parts = [_columns(page, sizes) for page in pages]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    columns = _common_steps(columns, len(pages))
    if not len(columns["step"]):
        raise ValueError(
            f"attempt {attempt} has no step whose operations all {len(pages)} ranks have recorded;"
            " steps are sampled: see lockstep switch --sample"
        )
    table = _table(columns)
    folder.mkdir(parents=True, exist_ok=True)
    trace, meta = folder / f"trace-{name}.parquet", folder / f"meta-{name}.yaml"
    _write_files(trace, meta, table, _meta(name, pages, sizes, columns))
    steps = len(np.unique(columns["step"]))
    return Export(trace=trace, meta=meta, rows=table.num_rows, steps=steps, ranks=len(pages))


def _common_steps(columns: Columns, num_ranks: int) -> Columns:
    """The rows of the steps that ``num_ranks`` ranks have recorded."""
    pairs = np.unique(np.stack((columns["step"], columns["rank"])), axis=1)
    steps, counts = np.unique(pairs[0], return_counts=True)
    is_common = np.isin(columns["step"], steps[counts == num_ranks])
    return {name: values[is_common] for name, values in columns.items()}


def _table(columns: Columns) -> pa.Table:
    """The columns in the published order, by rank and time; times count from their step's start."""
    _, of_step = np.unique(columns["step"], return_inverse=True)
    first = np.full(of_step.max() + 1, np.iinfo(np.int64).max)
    # The published times count from the first operation of the step on any rank.
    np.minimum.at(first, of_step, columns["start_ns"])
    start = (columns["start_ns"] - first[of_step]) / 1e9
    published = {**columns, "start_ts": start}
    order = np.lexsort((columns["seq_id"], start, columns["step"], columns["rank"]))
    schema = pa.schema(COLUMNS.items())
    return pa.table({name: published[name][order] for name in COLUMNS}).cast(schema)


def _exported_pages(attempt: Path) -> list[Page]:
    """The first page of each data-parallel and pipeline coordinate that has operations."""
    pages: dict[tuple[int, int, int], Page] = {}
    reason = "it holds no rank pages"
    for path in list_pages(attempt):
        try:
            page = read_page(path)
            operations.read_operations(operations.operations_path(path))
        except PageError as error:
            # One rank without operations must not hide the others; all without is an error.
            reason = str(error)
            continue
        mesh = page.identity["mesh"]
        coordinate = (mesh.get("dp", 0), mesh.get("fsdp", 0), mesh.get("pp", 0))
        # Tensor ranks do the same work; the published traces hold one of each group.
        pages.setdefault(coordinate, page)
    if not pages:
        raise ValueError(f"attempt {attempt} has no operations to export: {reason}")
    return list(pages.values())


def _prefer_device_rows(rows: np.ndarray) -> np.ndarray:
    """The rows without those by the host's clock whose step and operation the device timed too."""
    is_by_device = (rows["flags"] & operations.ON_DEVICE) != 0
    if not is_by_device.any():
        return rows
    keys = rows["step"] * len(operations.NAMES) + rows["operation"]
    # Launches are asynchronous: the host's phase ends before the device has done its work.
    is_by_phase = (
        rows["flags"] & (operations.FROM_PHASES | operations.ON_DEVICE)
    ) == operations.FROM_PHASES
    remaining: NDArray[Any] = rows[~(is_by_phase & np.isin(keys, keys[is_by_device]))]
    return remaining


def _columns(page: Page, sizes: dict[str, int]) -> Columns:
    """One rank's operations of completed steps; ``start_ns`` is wall clock."""
    data = operations.read_operations(operations.operations_path(page.path))
    rows = _prefer_device_rows(np.frombuffer(data, dtype=_DTYPE))
    # The step in progress has only some of its operations.
    last = page.state["step"]
    rows = rows[rows["step"] <= last] if last is not None else rows[:0]
    identity, mesh = page.identity, page.identity["mesh"]
    # Rows hold the monotonic clock; the page has one reading of both clocks.
    offset = identity["start_wall_ns"] - identity["start_monotonic_ns"]
    names = np.array(operations.NAMES)[rows["operation"]]
    chunk = rows["chunk"].astype(np.int32)
    compute = np.isin(names, _COMPUTE)
    count = len(rows)
    return {
        "dp_rank": np.full(count, mesh.get("dp", 0) * sizes["fsdp"] + mesh.get("fsdp", 0)),
        "stage": np.full(count, mesh.get("pp", 0)),
        "rank": np.full(count, identity["rank"]),
        "step": rows["step"],
        "optype": names,
        "start_ns": rows["start_ns"] + offset,
        "duration": rows["duration_ns"] / 1e9,
        "seq_id": rows["sequence"].astype(np.int32),
        "mc": np.where(np.isin(names, _CHUNK_OPERATIONS) & (chunk >= 0), chunk // sizes["pp"], -1),
        "mb_id": np.where(compute, rows["micro_batch"], -1),
        "gmc": np.where(compute, chunk, -1),
    }


def _meta(name: str, pages: list[Page], sizes: dict[str, int], columns: Columns) -> str:
    dp_size = sizes["dp"] * sizes["fsdp"]
    # What is neither data nor pipeline parallel counts as tensor parallel.
    rest = max(1, pages[0].identity["world_size"] // (dp_size * sizes["pp"]))
    chunks = int(columns["mc"].max())
    return (
        f"trial_name: {name}\nrun_id: {pages[0].identity['attempt']}\ndp_size: {dp_size}\n"
        f"dsp_size: 1\npp_size: {sizes['pp']}\ntp_size: {rest}\n"
        f"vpp_size: {1 + max(0, chunks)}\nworld_size: {dp_size * sizes['pp'] * rest}\n"
    )


def _write_files(trace: Path, meta: Path, table: pa.Table, meta_text: str) -> None:
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer)
    # The trace last: a reader that finds it finds its layout too.
    write_atomically(meta, meta_text)
    write_atomically(trace, buffer.getvalue().to_pybytes())
