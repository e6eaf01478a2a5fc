"""Reads operation traces: one row per operation of a rank, as in the published straggler traces."""

import io
import math
import os
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lockstep_records.file_access.compressed import most_content, read_content
from lockstep_records.text.printable import printable
from lockstep_records.text.yaml_documents import read_yaml
from lockstep_reports.arrays import Integers, Seconds
from lockstep_reports.readers import ReadOptions
from lockstep_reports.readers.files import MAX_FILES
from lockstep_reports.recording.operations import KNOWN_TYPES, Layout, OperationTrace, steps_of
from lockstep_reports.recording.recording import Recording
from lockstep_reports.wording import plural

_SIZES = {
    "dp_size": "replicas",
    "pp_size": "stages",
    "dsp_size": "sequence",
    "tp_size": "tensor",
    "vpp_size": "chunks",
    "ep_size": "experts",
    "world_size": "world_size",
}


def find_meta(trace: Path) -> Path | None:
    """The layout file of the same name next to a trace, if there is one."""
    name = trace.name.partition(".")[0].removeprefix("trace-")
    candidates = (trace.with_name(f"meta-{name}{suffix}") for suffix in (".yaml", ".yml"))
    return next((path for path in candidates if path.is_file()), None)


def read_meta(path: Path) -> dict[str, Any]:
    """The fields of a layout file; raises ValueError and OSError."""
    try:
        fields = read_yaml(path)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; write lines such as 'dp_size: 8'") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{path} is not a mapping; write lines such as 'dp_size: 8'")  # noqa: TRY004  # what is wrong is the file
    for name in _SIZES:
        size = fields.get(name, 1)
        if type(size) is not int or not 0 < size <= 1 << 24:
            # A value may be a knot of aliases that would fill the memory when written out.
            what = size if isinstance(size, int | float) else type(size).__name__
            raise ValueError(f"{path}: {name} {what} must be a positive whole number")
    return {str(name): value for name, value in fields.items()}


def layout_of(meta: dict[str, Any] | None, recorded: Layout) -> Layout:
    """The layout of the file, or the one that the rows show; ValueError where they go beyond it."""
    if meta is None:
        return recorded
    merged = asdict(recorded)
    for name, field in _SIZES.items():
        size = meta.get(name, merged[field])
        if size < merged[field] and field not in {"experts", "world_size", "chunks"}:
            raise ValueError(f"{name} is {size} in the layout, but the rows show {merged[field]}")
        merged[field] = size
    if "world_size" not in meta:
        sizes = (merged[name] for name in ("replicas", "stages", "sequence", "tensor"))
        merged["world_size"] = math.prod(sizes)
    return Layout(**merged)


_SUFFIXES = (".parquet", ".csv", ".gz", ".zst", ".zstd")
_MAX_NUMBERS = {
    "dp_rank": 1 << 20,
    "stage": 1 << 12,
    "tp_rank": 1 << 10,
    "rank": 1 << 24,
    "step": 1 << 40,
    "seq_id": 1 << 20,
}
_DEFAULTS = {"mc": -1, "mb_id": -1, "gmc": -1, "tp_rank": 0}
_MAX_SECONDS = 30 * 86400.0
_MAX_NAMED_TYPES = 3


def recognises(path: Path) -> bool:
    """Whether it is a file of operation rows, or a folder with some."""
    files = _files(path) if path.is_dir() else [path]
    return any(map(looks_like_rows, files[:2]))


def read(path: Path, options: ReadOptions) -> Recording:
    """The trace as a recording; raises as ``ReaderModule.read``."""
    trace = read_trace(path, options.meta)
    steps = steps_of(trace)
    return Recording(source_kind="operations", path=path, steps=steps, operations=trace)


def read_trace(path: Path, meta: Path | None = None) -> OperationTrace:
    """Operation rows of a file, or of a folder with parts of one trace; raises as ``read``."""
    files = _files(path) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"{path} holds no operation trace")
    notes: list[str] = []
    tables = [read_rows(file, notes) for file in files]
    _check_parts(files, tables)
    names = [name for name in tables[0].column_names if all(name in t.column_names for t in tables)]
    table = pa.concat_tables([t.select(names) for t in tables], promote_options="permissive")
    table = table.unify_dictionaries()
    layout_file = meta or find_meta(files[0])
    trace = _trace(path, table, read_meta(layout_file) if layout_file else None)
    return replace(trace, notes=(*notes, *trace.notes))


def _files(folder: Path) -> list[Path]:
    """Traces of a folder; of several formats of one name Parquet, else the first."""
    candidates = sorted(
        path for path in folder.iterdir() if path.is_file() and path.name.endswith(_SUFFIXES)
    )
    if len(candidates) > MAX_FILES:
        raise ValueError(f"{folder} holds more than {MAX_FILES:,} traces; give one of them")
    by_name: dict[str, Path] = {}
    for file in sorted(candidates, key=lambda path: ".parquet" not in path.name):
        by_name.setdefault(file.name.partition(".")[0], file)
    return [file for file in sorted(by_name.values()) if looks_like_rows(file)]


def _check_parts(files: list[Path], tables: list[pa.Table]) -> None:
    """Parts of one trace share no step of a rank, or have the same rows of it; else ValueError."""
    file_of: dict[tuple[int, int], int] = {}
    alike: set[tuple[int, int]] = set()
    if len(files) == 1:
        return
    for number, table in enumerate(tables):
        pairs = table.group_by(["rank", "step"]).aggregate([])
        for pair in zip(pairs["rank"].to_pylist(), pairs["step"].to_pylist(), strict=True):
            other = file_of.setdefault(pair, number)
            if other == number or (other, number) in alike:
                continue
            if _rows_at(tables[other], pair) != _rows_at(table, pair):
                raise ValueError(
                    f"{files[other].name} and {files[number].name} are two traces, both have rank "
                    f"{pair[0]} at step {pair[1]}; give one of them"
                )
            alike.add((other, number))


def _rows_at(table: pa.Table, pair: tuple[int, int]) -> set[tuple[object, ...]]:
    """The operations of a rank in a step."""
    of_rank = np.asarray(table["rank"]) == pair[0]
    rows = table.filter(pa.array(of_rank & (np.asarray(table["step"]) == pair[1])))
    columns = [rows[name].to_pylist() for name in ("optype", "seq_id", "start_ts", "duration")]
    return set(zip(*columns, strict=True))


def _trace(path: Path, table: pa.Table, meta: dict[str, object] | None) -> OperationTrace:
    notes: list[str] = []
    table = _possible_rows(table, notes)
    types, type_of = _coded(table["optype"])
    numbers = {name: _integers(path, table, name) for name in (*_MAX_NUMBERS, "mc", "mb_id", "gmc")}
    replicas, stages = (int(numbers[name].max()) + 1 for name in ("dp_rank", "stage"))
    layout = layout_of(
        meta,
        recorded=Layout(
            replicas=replicas,
            stages=stages,
            tensor=int(numbers["tp_rank"].max()) + 1,
            chunks=max(1, int(numbers["mc"].max()) + 1),
            world_size=len(np.unique(numbers["rank"])),
        ),
    )
    if meta is None:
        notes.append("No layout file was given or found; the layout is the one the rows show.")
    model_chunk = numbers["gmc"]
    if "gmc" not in table.column_names:
        model_chunk = np.where(numbers["mc"] < 0, -1, numbers["mc"] * stages + numbers["stage"])
    return OperationTrace(
        name=_name(path, meta),
        layout=layout,
        types=types,
        type_of=type_of,
        replica=numbers["dp_rank"],
        stage=numbers["stage"],
        shard=numbers["tp_rank"],
        rank=numbers["rank"],
        step=numbers["step"],
        start=_seconds(table, "start_ts"),
        duration=_seconds(table, "duration"),
        order=numbers["seq_id"],
        chunk=numbers["mc"],
        model_chunk=model_chunk,
        batch=numbers["mb_id"],
        nodes=_nodes(table),
        notes=tuple(notes),
    )


def _name(path: Path, meta: dict[str, object] | None) -> str:
    trial = (meta or {}).get("trial_name")
    name = trial if isinstance(trial, str) and trial else path.name.partition(".")[0]
    return printable(name[:100])


def _seconds(table: pa.Table, name: str) -> Seconds:
    """A column of seconds [rows]; float32 stays float32, for it halves the memory."""
    values: Seconds = table[name].to_numpy()
    return values if values.dtype == np.float32 else values.astype(np.float64, copy=False)


def _possible_rows(table: pa.Table, notes: list[str]) -> pa.Table:
    """Rows whose times can be true and whose type is known; ``notes`` takes what is left out.

    Raises ValueError where no such row is left, or a column of seconds holds something else.
    """
    count = table.num_rows
    table = table.drop_null() if any(column.null_count for column in table.columns) else table
    for name in ("start_ts", "duration"):
        if not (pa.types.is_floating(table[name].type) or pa.types.is_integer(table[name].type)):
            raise ValueError(f"column {name!r} holds {table[name].type}; it must be seconds")
    start, duration = _seconds(table, "start_ts"), _seconds(table, "duration")
    possible = np.isfinite(start) & (duration >= 0) & (duration <= _MAX_SECONDS)
    if not possible.all():
        table = table.filter(pa.array(possible))
    if num_left_out := count - table.num_rows:
        notes.append(f"{plural(num_left_out, 'row')} with a time missing or impossible left out.")
    types, type_of = _coded(table["optype"])
    is_known = np.array([name in KNOWN_TYPES for name in types], bool)
    names = [printable(types[index][:40]) for index in np.unique(type_of) if not is_known[index]]
    if names:
        names[_MAX_NAMED_TYPES:] = ["..."] if len(names) > _MAX_NAMED_TYPES else []
        notes.append(f"Operations of unknown type are not replayed: {', '.join(names)}.")
        table = table.filter(pa.array(is_known[type_of]))
    if not table.num_rows:
        raise ValueError("no row of the trace has a known operation and possible times")
    return table


def _coded(column: pa.ChunkedArray) -> tuple[tuple[str, ...], Integers]:
    """Distinct texts, and for each row the index of its own among them [rows]."""
    if not pa.types.is_dictionary(column.type):
        if not pa.types.is_string(column.type) and not pa.types.is_large_string(column.type):
            raise ValueError(f"a column of names holds {column.type}; it must be text")
        column = column.dictionary_encode()
    array = column.unify_dictionaries().combine_chunks()
    array = array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
    names = tuple(str(name) for name in array.dictionary.to_pylist())
    return names, array.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _integers(path: Path, table: pa.Table, name: str) -> Integers:
    """A column of integers [rows], or of its default where the file lacks it.

    Raises ValueError where a value is not an integer, or out of range.
    """
    if name not in table.column_names:
        return np.full(table.num_rows, _DEFAULTS[name], np.int64)
    values = table[name].to_numpy()
    if values.dtype.kind not in "iuf" or np.any(values != np.round(values)):
        raise ValueError(f"{path}: column {name!r} must hold whole numbers")
    low, high = _DEFAULTS.get(name, 0), _MAX_NUMBERS.get(name, 1 << 20)
    worst = values[(values < min(low, 0)) | (values >= high)]
    if len(worst):
        raise ValueError(f"{path}: {name} {worst[0]} is not from {min(low, 0)} to {high - 1}")
    integers: Integers = values.astype(np.int64, copy=False)
    return integers


def _nodes(table: pa.Table) -> dict[int, str]:
    """Name of the node by rank; empty where the file has none."""
    if "node" not in table.column_names:
        return {}
    names, node_of = _coded(table["node"])
    ranks, first = np.unique(table["rank"].to_numpy(), return_index=True)
    return {
        int(rank): printable(names[node_of[row]][:100])
        for rank, row in zip(ranks, first, strict=True)
    }


MAX_ROWS = 1 << 25
MAX_FILE_BYTES = 1 << 31
_MOST_FOOTER_BYTES = 1 << 20
"""Thirty groups of thirteen columns take a twentieth of it."""
_CELL_BYTES = 8
NEEDED = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id")
OPTIONAL = ("mc", "mb_id", "gmc", "tp_rank", "node")
_SIGNATURE = {"optype", "start_ts", "duration"}
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_PARQUET = b"PAR1"
_HEAD_BYTES = 1 << 16
_BLOCK_BYTES = 1 << 22
_FLOATS = ("start_ts", "duration")
_TEXTS = ("optype", "node")
_NO_NUMBER = ["", "-", "nan", "NaN", "null", "NULL", "None"]  # "-": a number that was cut off


def looks_like_rows(path: Path) -> bool:
    """Whether a file begins as operation rows do; a broken Parquet file counts as well.

    So its error names the trace, and no other reader takes it for its own.
    """
    try:
        with _opened(path) as stream:
            head = stream.read(_HEAD_BYTES)
        if head.startswith(_PARQUET):
            return _has_operation_columns(path)
    except (OSError, pa.ArrowException):
        return False
    header = bytes(head).partition(b"\n")[0].decode("utf-8", "replace")
    return set(_names(header)) >= _SIGNATURE


def read_rows(path: Path, notes: list[str]) -> pa.Table:
    """All rows of a file, with the columns of ``NEEDED`` and ``OPTIONAL``; notes incomplete lines.

    Raises ValueError where it is broken, too big or lacks a column, and OSError.
    """
    try:
        with _opened(path) as stream:
            is_parquet = bytes(stream.read(4)) == _PARQUET
        return _read_parquet(path) if is_parquet else _read_csv(path, notes)
    except (pa.ArrowException, OverflowError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # from the file system; the error of a broken stream has no number
        why = printable(str(error).splitlines()[0][:200]) if str(error) else "unreadable"
        raise ValueError(
            f"{path} is not a readable operation trace ({why}); write it again"
        ) from error


def _names(header: str) -> list[str]:
    return [name.strip().strip('"') for name in header.split(",")]


def _opened(path: Path) -> pa.NativeFile:
    with path.open("rb") as file:
        magic = file.read(4)
    for begin, name in _COMPRESSIONS.items():
        if magic.startswith(begin):
            return pa.input_stream(str(path), compression=name)
    return pa.input_stream(str(path), compression=None)


def _parquet(path: Path) -> pq.ParquetFile:
    with path.open("rb") as file:
        is_plain = file.read(4) == _PARQUET
    if is_plain:
        return _checked(path, path)
    return _checked(path, io.BytesIO(read_content(path, MAX_FILE_BYTES)))


def _checked(path: Path, source: Path | io.BytesIO) -> pq.ParquetFile:
    """The file, unless what it says of itself is too large; texts are read as dictionaries."""
    with path.open("rb") if isinstance(source, Path) else nullcontext(source) as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - 8))
        footer = int.from_bytes(stream.read(4), "little")
    if _MOST_FOOTER_BYTES < footer < size:
        raise ValueError(
            f"{path} says in {footer:,} bytes what it holds; write it with fewer columns and groups"
        )
    names = pq.read_schema(source).names
    texts = [name for name in _TEXTS if name in names]
    file = pq.ParquetFile(source, memory_map=isinstance(source, Path), read_dictionary=texts)
    groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
    rows, num_columns = file.metadata.num_rows, len({*NEEDED, *OPTIONAL} & {*names})
    most = min(MAX_FILE_BYTES, most_content(path.stat().st_size))
    if (
        rows > MAX_ROWS
        or rows * num_columns * _CELL_BYTES > most
        or sum(g.total_byte_size for g in groups) > MAX_FILE_BYTES
    ):
        raise ValueError(
            f"{path} has more than {MAX_ROWS:,} rows or {most:,} bytes; split it by step"
        )
    return file


def _has_operation_columns(path: Path) -> bool:
    try:
        return set(_parquet(path).schema_arrow.names) >= _SIGNATURE
    except (pa.ArrowException, OSError, ValueError):
        return True


def _read_parquet(path: Path) -> pa.Table:
    file = _parquet(path)
    schema = file.schema_arrow
    _check_columns(path, schema.names)
    columns = [name for name in (*NEEDED, *OPTIONAL) if name in schema.names]
    batches = file.iter_batches(columns=columns, batch_size=1 << 20)
    return _bounded(path, batches)


def _read_csv(path: Path, notes: list[str]) -> pa.Table:
    from pyarrow import csv  # noqa: PLC0415  # 20 ms that Parquet readers need not wait for

    with _opened(path) as stream:
        header = bytes(stream.read(_HEAD_BYTES)).partition(b"\n")[0].decode("utf-8", "replace")
    names = _names(header)
    _check_columns(path, names)
    columns = [name for name in (*NEEDED, *OPTIONAL) if name in names]
    text = pa.dictionary(pa.int32(), pa.string())
    kinds = {
        name: pa.float64() if name in _FLOATS else text if name in _TEXTS else pa.int64()
        for name in columns
    }
    num_broken = count()
    reader = csv.open_csv(
        _opened(path),
        read_options=csv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=True),
        parse_options=csv.ParseOptions(invalid_row_handler=partial(skip_line, num_broken)),
        convert_options=csv.ConvertOptions(
            include_columns=columns, column_types=kinds, null_values=_NO_NUMBER
        ),
    )
    table = _bounded(path, reader)
    if left_out := next(num_broken):
        lines = plural(left_out, "incomplete line")
        notes.append(f"{lines} of {printable(path.name)} left out.")
    return table


def skip_line(counter: Iterator[int], _line: object) -> str:
    """Counts a broken line of a table, and tells pyarrow to go on."""
    next(counter)
    return "skip"


def _check_columns(path: Path, names: list[str]) -> None:
    missing = [name for name in NEEDED if name not in names]
    if missing:
        raise ValueError(
            f"{path} lacks the column {missing[0]!r}; an operation trace has {', '.join(NEEDED)}"
        )


def _bounded(path: Path, batches: Iterator[pa.RecordBatch]) -> pa.Table:
    """A table of all batches; raises ValueError beyond ``MAX_ROWS`` rows or without any."""
    read, num_rows = [], 0
    for batch in batches:
        num_rows += batch.num_rows
        if num_rows > MAX_ROWS:
            raise ValueError(f"{path} has more than {MAX_ROWS:,} rows; split it by step")
        read.append(batch)
    if not num_rows:
        raise ValueError(f"{path} has no rows; record at least one step")
    return pa.Table.from_batches(read).unify_dictionaries()
