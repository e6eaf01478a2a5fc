"""Rows of pages and operations as columns of Parquet, from the tables of their formats.

Every number of a row is kept to the bit. A column is null where the row does not tell it. Extras
that are nanoseconds, written as seconds, become whole nanoseconds (``core_seconds``: ``core_ns``).
"""

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lockstep_records.files.operations import OPERATION
from lockstep_records.page.layout import EXTRAS, ROW, Section

SECTIONS = {"steps": ROW, "operations": OPERATION}
"""Tables of rows by name, with the section that a row of each is."""
GROUP_ROWS = 1024
"""Rows of each rank in a row group, the least that a reader fetches of a column."""
_UNWRITTEN = {"present", "checksum"}
_TYPES = {
    "Q": pa.uint64(), "q": pa.int64(), "I": pa.uint32(), "i": pa.int32(), "h": pa.int16(),
    "b": pa.int8(), "B": pa.uint8(), "f": pa.float32(), "d": pa.float64(),
}  # fmt: skip
_SECONDS, _NANOSECONDS = "_seconds", "_ns"
NANOSECOND = 1e-9
"""By which nanoseconds become the seconds that were written, to the bit."""
# Exact in a double, and in a sum of two.
_MAX_NS = float(1 << 52)
# Of 1, 3, 5, 9 and 15 each gives 1 % more than the one before for twice the time.
_LEVEL = 3


def column_names(section: Section) -> Iterator[tuple[str, str, int]]:
    """Name of each column, with its field and the index in that."""
    for field in section.fields:
        if field.name not in _UNWRITTEN:
            for index, item in enumerate(field.items or (field.name,)):
                is_item = bool(field.items) and not field.optional
                yield (item + _SECONDS if is_item else item), field.name, index


def column_types(section: Section) -> dict[str, Any]:
    """Type of each column that a file may have, those of nanoseconds included."""
    types = {"rank": pa.int32()}
    for name, field, _ in column_names(section):
        types[name] = _TYPES[section.codes[field]]
        if types[name] == pa.float64() and name.endswith(_SECONDS):
            types[nanoseconds_name(name)] = pa.int64()
    return types


@lru_cache(maxsize=64)
def check_columns(table: str, schema: pa.Schema) -> None:
    """Checks the columns of a table's file by name, of which some may lack; or ValueError."""
    section, types = SECTIONS.get(table), dict(zip(schema.names, schema.types, strict=True))
    expected = column_types(section) if section else MINUTE_TYPES
    for name, kind in types.items():
        if kind != expected.get(name, kind):
            raise ValueError(f"has column {name} as {kind}, not as {expected[name]}")
    names = ("rank", *(each for each, _, _ in column_names(section))) if section else expected
    for name in names:
        if name not in types and not (section and name in section.presence):
            raise ValueError(f"lacks the column {name}")


DURATIONS = tuple(n for n, field, _ in column_names(ROW) if field in {"seconds", "phase_seconds"})
RARE = tuple(name for name in EXTRAS if name.endswith(_SECONDS))
"""Seconds that few rows tell."""
QUANTILES = {"p50": 0.5, "p95": 0.95, "max": 1.0}
"""Of the durations of a rank's steps in a minute."""
MINUTE_TYPES = {
    "rank": pa.int32(),
    "minute": pa.int64(),
    "first_step": pa.int64(),
    "last_step": pa.int64(),
    "steps": pa.int64(),
    "nonfinite": pa.int64(),
    "tokens_sum": pa.int64(),
    "samples_sum": pa.int64(),
    **{f"{name}_sum": pa.float64() for name in DURATIONS},
    **{f"{name}_sum": pa.float64() for name in RARE},
    **{f"{n}_{quantile}": pa.float32() for n in (*DURATIONS, "loss") for quantile in QUANTILES},
}
"""Columns of the minutes, of which each row is of a rank."""


def nanoseconds_name(name: str) -> str:
    """The column of whole nanoseconds that replaces one of seconds."""
    return name.removesuffix(_SECONDS) + _NANOSECONDS


def make_table(section: Section, rows: Sequence[tuple[int, bytes]]) -> pa.Table:
    """A table of packed rows, given by rank."""
    data = b"".join(part for _, part in rows)
    counts = [(pa.scalar(rank, pa.int32()), len(part) // section.size) for rank, part in rows]
    columns = {"rank": pa.concat_arrays([pa.repeat(rank, count) for rank, count in counts])}
    present = _column(section, data, "present", 0) if section.presence else None
    for name, field, index in column_names(section):
        values = _column(section, data, field, index)
        bit = section.presence.get(name, 0)
        if bit:
            unknown = pc.equal(pc.bit_wise_and(present, pa.scalar(bit, pa.uint32())), 0)
            values = pc.if_else(unknown, pa.scalar(None, values.type), values)
        columns[name] = values
    return pa.table(columns)


def _column(section: Section, data: bytes, field: str, index: int) -> pa.Array:
    """One number of each row; without NumPy, which the machines of the jobs do not need."""
    code = section.codes[field]
    width = struct.calcsize(code)
    begin, step = section.offsets[field] // width + index, section.size // width
    values = memoryview(data).cast(code)[begin::step].tobytes()  # type: ignore[call-overload]  # typeshed knows no code given as a str
    return pa.Array.from_buffers(
        _TYPES[code], len(data) // section.size, [None, pa.py_buffer(values)]
    )


def _with_nanoseconds(table: pa.Table) -> pa.Table:
    """The table with seconds in doubles as whole nanoseconds, where that gives the same doubles."""
    for at, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
        if not (pa.types.is_float64(column.type) and name.endswith(_SECONDS)):
            continue
        rounded = pc.round(pc.multiply(column, 1e9))
        is_whole = pc.and_(
            pc.less(pc.abs(rounded), _MAX_NS), pc.equal(pc.multiply(rounded, NANOSECOND), column)
        )
        if pc.all(is_whole, min_count=0).as_py():
            table = table.set_column(at, nanoseconds_name(name), rounded.cast(pa.int64()))
    return table


def write_table(groups: Sequence[pa.Table]) -> bytes:
    """A Parquet file of at least one table, each a row group; same bytes for the same rows."""
    table = _with_nanoseconds(pa.concat_tables(groups))
    sink, first = pa.BufferOutputStream(), 0
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        compression_level=_LEVEL,
        use_dictionary=False,
        column_encoding={field.name: _encoding(field.type) for field in table.schema},
        write_page_checksum=True,
    ) as writer:
        for group in groups:
            writer.write_table(table.slice(first, len(group)), row_group_size=len(group) or 1)
            first += len(group)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _encoding(kind: Any) -> str:
    """Times ascend, and the bytes of a number's exponent are alike: measured as the smallest."""
    if pa.types.is_floating(kind):
        return "BYTE_STREAM_SPLIT"
    return "DELTA_BINARY_PACKED" if pa.types.is_integer(kind) else "PLAIN"
