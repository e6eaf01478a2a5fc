"""Reads operation rows from Parquet or CSV, plain or compressed, within bounds of memory."""

import io
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lockstep_records.text.printable import printable
from lockstep_reports.wording import plural

MAX_ROWS = 1 << 25
MAX_FILE_BYTES = 1 << 31
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

    Raises:
        ValueError: the file is broken, too big, or lacks a column.
        OSError: it cannot be read.
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
    unpacked = io.BytesIO()
    with _opened(path) as stream:
        while block := stream.read(_BLOCK_BYTES):
            unpacked.write(block)
            if unpacked.tell() > MAX_FILE_BYTES:
                raise ValueError(f"{path} unpacks to more than {MAX_FILE_BYTES:,} bytes; split it")
    return _checked(path, unpacked)


def _checked(path: Path, source: Path | io.BytesIO) -> pq.ParquetFile:
    """The file, unless what it says of itself is too large; texts are read as dictionaries."""
    texts = [name for name in _TEXTS if name in pq.read_schema(source).names]
    file = pq.ParquetFile(source, memory_map=isinstance(source, Path), read_dictionary=texts)
    groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
    if file.metadata.num_rows > MAX_ROWS or sum(g.total_byte_size for g in groups) > MAX_FILE_BYTES:
        raise ValueError(
            f"{path} has more than {MAX_ROWS:,} rows or {MAX_FILE_BYTES:,} bytes; split it by step"
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
