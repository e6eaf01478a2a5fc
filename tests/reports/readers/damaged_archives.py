"""Archives as nobody writes them: what may be wrong with a file, and what its layout may be."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from lockstep_records.archive.manifest import Manifest


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)


def without_column(name: str) -> Callable[[Path], None]:
    def drop(path: Path) -> None:
        table = pq.read_table(path)
        pq.write_table(table.drop_columns([name]), path)
        resize(path)

    return drop


def with_cells(name: str, value: Any, rows: range | None = None) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        table = pq.read_table(path)
        at, cells = table.column_names.index(name), table[name].to_pylist()
        for row in rows or range(len(cells)):
            cells[row] = value
        changed = pa.array(cells, table.schema.field(name).type)
        pq.write_table(table.set_column(at, name, changed), path, row_group_size=len(table) // 2)
        resize(path)

    return write


def rot_one_group(path: Path) -> None:
    """Flips bits in the step numbers of the first of two row groups."""
    table = pq.read_table(path)
    pq.write_table(table, path, row_group_size=len(table) // 2, write_page_checksum=True)
    resize(path)
    begin = pq.read_metadata(path).row_group(0).column(table.column_names.index("step"))
    data = bytearray(path.read_bytes())
    data[begin.data_page_offset + begin.total_compressed_size - 1] ^= 255
    path.write_bytes(data)


def as_text(path: Path) -> None:
    table = pq.read_table(path)
    at = table.column_names.index("step")
    pq.write_table(table.set_column(at, "step", table["step"].cast(pa.string())), path)
    resize(path)


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def fill_up(path: Path) -> None:
    table = pq.read_table(path)
    texts = pa.array([bytes(1 + (1 << 27))] * len(table), pa.binary())
    at = table.column_names.index("stderr")
    pq.write_table(table.set_column(at, "stderr", texts), path, use_dictionary=False)


def as_number(path: Path) -> None:
    table = pq.read_table(path)
    at = table.column_names.index("stderr")
    pq.write_table(table.set_column(at, "stderr", table["rank"]), path)


def double_column(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.append_column("step", table["step"]), path)
    resize(path)


def resize(path: Path) -> None:
    """The manifest is right about the size of a file that was written anew."""
    size = path.stat().st_size
    first_row = int(path.stem.removeprefix("steps-"))
    edit_stretches(
        lambda each: {"size_bytes": size if each["first_row"] == first_row else each["size_bytes"]}
    )(path)


def edit(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Changes what the manifest says of the attempt, in the folder of which a file lies."""

    def apply(path: Path) -> None:
        manifest = path.parents[1] / "manifest.json"
        fields = json.loads(manifest.read_bytes())
        change(fields["attempts"]["0"])
        manifest.write_text(json.dumps(fields))

    return apply


def edit_stretches(change: Callable[[dict[str, Any]], dict[str, int]]) -> Callable[[Path], None]:
    return edit(lambda part: [each.update(change(each)) for each in part["stretches"]])


def replace_manifest(data: bytes) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        (path.parents[1] / "manifest.json").write_bytes(data)

    return replace


LAYOUTS: dict[str, Callable[[pa.Table], tuple[pa.Table, int]]] = {
    "a row group a row": lambda table: (table, 1),
    "groups that cut ranks and episodes": lambda table: (table, 77),
    "ranks in turn": lambda table: (
        table.sort_by([("number", "ascending"), ("rank", "descending")]),
        1 << 20,
    ),
    "newest first": lambda table: (table.sort_by([("number", "descending")]), 100),
    "other columns, and in another order": lambda table: (
        table.select(table.column_names[::-1]).append_column("other", table["step"]),
        1000,
    ),
}


# What is done to a file of one node of four, and what the report says of it.
HOSTILE: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "the rows are cut off": ("steps-*", truncate, "is damaged or cut off"),
    "the rows are gone": ("steps-*", Path.unlink, "is not there"),
    "a bit of the rows is wrong": ("steps-*", flip, "is damaged or cut off"),
    "the times of a phase are gone": (
        "steps-*", without_column("forward_seconds"), "lacks the column forward_seconds"),
    "no time of a phase is a number": (
        "steps-*", with_cells("backward_seconds", float("nan")), "rows with values that no step"),
    "the step numbers are texts": ("steps-*", as_text, "has column step as string"),
    "the ranks are cut off": ("ranks.parquet", truncate, "ranks.parquet is damaged"),
    "the ranks are gone": ("ranks.parquet", Path.unlink, "is not there"),
    "the manifest promises more rows": (
        "steps-*", edit_stretches(lambda each: {"rows": 2 * each["rows"]}), "its manifest"),
    "the manifest promises a larger file": (
        "steps-*", edit_stretches(lambda _: {"size_bytes": 1 << 40}), "cut off"),
    "the manifest hides the rows": (
        "steps-*", edit(lambda part: part.update(stretches=[])), "less than half of the steps"),
    "the manifest names a file twice": (
        "steps-*", edit(lambda part: part["stretches"].append(part["stretches"][0])), "same rows"),
    "the file is a pipe": ("steps-*", make_pipe, "is not a regular file"),
    "the ranks are a bomb": ("ranks.parquet", fill_up, "unpacks to"),
    "what ranks said is a number": (
        "ranks.parquet", as_number, "2 ranks of node node-1 left out"),
    "a column is there twice": ("steps-*", double_column, "two columns of one name"),
    "the manifest names a file elsewhere": (
        "steps-*", edit_stretches(lambda each: {"first_row": each["first_row"] + 7}),
        "is not there"),
    "the manifest has a rank outside the world": (
        "steps-*", edit(lambda part: part.update(ranks=[1 << 30])), "outside its 8"),
    "the manifest is of another job": (
        "steps-*",
        replace_manifest(msgspec.json.encode(Manifest(job_id="other", node="node-1"))),
        "of job 'other'"),
    "the manifest is of a later version": (
        "steps-*", replace_manifest(b'{"version":2,"new":1}'), "of version 2, of another Lockstep"),
    "the manifest is no JSON": ("steps-*", replace_manifest(b"{"), "manifest of node node-1"),
    "the folder has a name that no node has": (
        "ranks.parquet", lambda path: path.parents[1].rename(path.parents[2] / "\x1b[31m"),
        r"'\x1b[31m' is not a name that a node has"),
    "the manifest is gone": (
        "steps-*",
        lambda path: (path.parents[1] / "manifest.json").unlink(missing_ok=True),
        "no manifest"),
}  # fmt: skip
