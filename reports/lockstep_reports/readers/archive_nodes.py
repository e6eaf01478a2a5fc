"""Rows of a node of an archive: read by columns, and those that are damaged left out.

Runs wherever an engine runs it: what it takes and gives are values.
"""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lockstep_records.archive.manifest import Stretch
from lockstep_records.archive.reader import ArchiveError, JobArchive
from lockstep_records.archive.tables import GROUP_ROWS, NANOSECOND, column_names, nanoseconds_name
from lockstep_records.page.layout import EXTRAS, ROW
from lockstep_records.page.reader import Page
from lockstep_reports.arrays import Integers
from lockstep_reports.readers.page_rows import (
    Columns,
    Part,
    Question,
    Rows,
    are_possible,
    join_rows,
)
from lockstep_reports.readers.pages import (
    OPERATION_COLUMNS,
    ROW_DTYPE,
    damaged_rows,
    sum_operations,
)
from lockstep_reports.recording.steps import SampledOperations

_UNREAD = {"number", "first_arrival_ns", "gradient_norm", "samples", "sequence_min", "sequence_max"}
_NAMES = {name: (field, index) for name, field, index in column_names(ROW) if name not in _UNREAD}
_FIELDS = dict.fromkeys([*(field for field, _ in _NAMES.values()), "present"])
# Without the room in a row for extras that may come.
_FULL = np.dtype([(n, ("<f8", (len(EXTRAS),)) if n == "extras" else ROW_DTYPE[n]) for n in _FIELDS])
_BRIEF = np.dtype([(n, ROW_DTYPE[n]) for n in ("step", "flags", "seconds", "phase_seconds")])
_PAUSES = ("checkpoint_seconds", "eval_seconds")
_SURVEY = np.dtype([(n, ROW_DTYPE[n]) for n in ("step", "flags")])
Result = TypeVar("Result")
Survey = NDArray[np.void]


class NodeRows:
    """What a node has of an attempt: rows in columns, and behind them those of raw pages."""

    def __init__(self, name: str, stretches: Sequence[Stretch]) -> None:
        self.name, self.pages = name, list[Page]()
        self.stretches = [each for each in stretches if each.table == "steps"]
        self.operations = [each for each in stretches if each.table == "operations"]
        self.rings: dict[int, Rows] = {}
        self.ranks = set[int]()
        self.num_damaged = 0
        self.surveyed: list[Survey] = []


class NodeRead(NamedTuple, Generic[Result]):
    """What a node gave, sentences on files that it did not, and what is left of its stretches."""

    result: Result
    losses: list[str]
    stretches: list[Stretch]
    num_damaged: int


class NodeReader(NamedTuple):
    """Reads the rows of an attempt by nodes, wherever that runs."""

    archive: JobArchive
    attempt: int

    def survey(self, is_sampled: bool, node: NodeRows) -> NodeRead[list[Survey]]:
        """Step and flags of each page's rows, and pauses; pages of the same rows share them."""
        names = ("rank", "step", "flags", "seconds", *(_PAUSES if is_sampled else ()))
        read = self._rows(node, names, _BRIEF, None)
        rows, page_of = read.result
        trimmed, seen = _trim(rows, _BRIEF if is_sampled else _SURVEY), dict[bytes, Survey]()
        ends = np.searchsorted(page_of, np.arange(1, len(node.pages) + 1)).tolist()
        parts = [trimmed[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
        shared = [seen.setdefault(each.tobytes(), each.copy()) for each in parts]
        return NodeRead(shared, *read[1:])

    def answer(self, question: Question, node: NodeRows) -> NodeRead[Part]:
        """What is asked of the rows."""
        first, last = question.numbers[[0, -1]].tolist() if len(question.numbers) else (0, -1)
        # Waits are since an earlier row: that of the row group before, if not a nearer one.
        read = self._rows(node, ("rank", *_NAMES), _FULL, (first - GROUP_ROWS, last))
        return NodeRead(question.answer(node.pages, *read.result), *read[1:])

    def sum_operations(
        self, steps: tuple[int, int], node: NodeRows
    ) -> tuple[SampledOperations | None, list[str]]:
        """The operations in steps from a first to a last, and sentences on files without any."""
        tables, losses = list[pa.Table](), list[str]()
        for stretch in node.operations:
            if stretch.last_step >= steps[0] and stretch.first_step <= steps[1]:
                try:
                    read = self.archive.read_rows(
                        node.name, self.attempt, stretch, OPERATION_COLUMNS, steps=steps
                    )
                    tables.append(read[0])
                except ArchiveError as error:
                    losses.append(str(error))
        if not tables:
            return None, losses
        table = pa.concat_tables(tables).drop_null()
        return sum_operations({name: table[name].to_numpy() for name in OPERATION_COLUMNS}), losses

    def _rows(
        self, node: NodeRows, names: Sequence[str], dtype: np.dtype[np.void],
        steps: tuple[int, int] | None,
    ) -> NodeRead[tuple[Columns, Integers]]:  # fmt: skip
        """Rows of a node's pages after each other, and the page of each [rows]."""
        parts, ranks = [Columns.of(np.empty(0, dtype))], [np.empty(0, dtype=np.int32)]
        losses, left, num_damaged = list[str](), list[Stretch](), 0
        for stretch in node.stretches:
            if not steps or (stretch.last_step >= steps[0] and stretch.first_step <= steps[1]):
                try:
                    rank, rows, num_lost = self._read(node, stretch, names, dtype, steps)
                except ArchiveError as error:
                    losses.append(str(error))
                    continue
                num_damaged += num_lost
                parts.append(rows)
                ranks.append(rank)
            left.append(stretch)
        for number, ring in node.rings.items():
            first = int(ring["step"][0]) if len(ring) else 1 << 62
            for at, rows in enumerate(parts):
                older = (ranks[at] != number) | (rows["step"] < first)
                parts[at], ranks[at] = rows[older], ranks[at][older]
            parts.append(Columns.of(_trim(ring, dtype)))
            ranks.append(np.full(len(ring), number, dtype=np.int32))
        rows, page_of = join_rows(parts[1:] or parts), _find_pages(node.pages, ranks)
        chosen = page_of >= 0
        order = np.flatnonzero(chosen)[np.argsort(page_of[chosen], kind="stable")]
        if (np.diff(order, prepend=-1) != 1).any() or len(order) < len(rows):
            rows, page_of = rows[order], page_of[order]
        return NodeRead((rows, page_of), losses, left, num_damaged)

    def _read(
        self, node: NodeRows, stretch: Stretch, names: Sequence[str], dtype: np.dtype[np.void],
        steps: tuple[int, int] | None,
    ) -> tuple[NDArray[np.int32], Columns, int]:  # fmt: skip
        """Ranks and rows of a file, and how many are damaged; raises ArchiveError for most."""
        stored = [*names, *map(nanoseconds_name, names)]
        table, num_lost = self.archive.read_rows(
            node.name, self.attempt, stretch, stored, steps=steps
        )
        rank, rows = _decode(table, names, dtype)
        is_possible = are_possible(rows) & np.isin(rank, [*node.ranks])
        num_lost += int(np.count_nonzero(~is_possible))
        if num_lost * 2 > stretch.rows:
            what = f"{damaged_rows(num_lost)}, of {stretch.rows:,}"
            raise ArchiveError(f"{stretch.name} of node {node.name} has {what}")
        return (
            (rank, rows, 0) if num_lost == 0 else (rank[is_possible], rows[is_possible], num_lost)
        )


def _find_pages(pages: Sequence[Page], ranks: Sequence[NDArray[np.int32]]) -> Integers:
    """Which of the pages has each rank [ranks], -1 where none has it."""
    of_page = np.array([page.identity["rank"] for page in pages] or [-1])
    every, order = np.concatenate(ranks), np.argsort(of_page)
    found = order[np.minimum(np.searchsorted(of_page[order], every), len(of_page) - 1)]
    return np.where(of_page[found] == every, found, -1)


def _trim(rows: Rows, dtype: np.dtype[np.void]) -> NDArray[np.void]:
    """The fields of rows that a smaller type has."""
    trimmed = np.empty(len(rows), dtype)
    for name in dtype.names or ():
        trimmed[name] = (
            rows[name] if rows[name].ndim == 1 else rows[name][:, : dtype[name].shape[0]]
        )
    return trimmed


def _decode(
    table: pa.Table, names: Sequence[str], dtype: np.dtype[np.void]
) -> tuple[NDArray[np.int32], Columns]:
    """Ranks and rows [rows] of a table; raises ArchiveError where a number is missing."""
    # A number that nobody recorded takes no memory.
    fields = {
        name: np.broadcast_to(np.zeros((), dtype[name].base), (*dtype[name].shape, len(table)))
        for name in dtype.names or ()
    }
    recorded = set(table.column_names)
    for name in names:
        stored = name if name in recorded else nanoseconds_name(name)
        bit = ROW.presence.get(name, 0)
        if stored not in recorded:
            continue  # an extra that was not recorded then
        column = table.column(stored)
        if bit and column.null_count == len(column):
            continue
        if column.null_count and not bit:
            raise ArchiveError(f"column {stored} of a file of steps has gaps")
        if bit:
            is_known = column.is_valid().to_numpy() if column.null_count else np.True_
            fields["present"] = fields["present"] | is_known * np.uint32(bit)
            column = column.fill_null(0) if column.null_count else column
        values = column.to_numpy()
        if stored != name:
            values = values * NANOSECOND
        if name == "rank":
            ranks = values
            continue
        field, index = _NAMES[name]
        if fields[field].ndim == 1:
            fields[field] = values
            continue
        if not fields[field].flags.writeable:
            fields[field] = np.zeros(fields[field].shape, fields[field].dtype)
        fields[field][index] = values
    return ranks, Columns({name: values.T for name, values in fields.items()})
