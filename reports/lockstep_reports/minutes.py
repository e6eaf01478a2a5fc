"""Step rows of ranks as sums and quantiles by minute: made of rows, and read for a report."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_records.archive.manifest import ThinnedAttempt
from lockstep_records.archive.tables import (
    DURATIONS,
    MINUTE_TYPES,
    NANOSECOND,
    QUANTILES,
    RARE,
    nanoseconds_name,
)
from lockstep_records.page.layout import ROW_FLAGS
from lockstep_reports.arrays import Integers, Matrix
from lockstep_reports.recording.thinned import SECONDS, Thinned

_MEDIANS = ("seconds_p50", *(f"{phase}_seconds_p50" for phase in STEP_PHASES))
READ = ("minute", "first_step", "last_step", *_MEDIANS)
"""Columns that a report needs."""
_NONFINITE = 1 << ROW_FLAGS.index("nonfinite")
_COUNTS = ("tokens", "samples")


def sum_up(rows: pa.Table, minutes: Integers, stretches: Integers) -> pa.Table:
    """A row for each rank, minute and stretch of the rows, whose minute and stretch are [rows].

    Durations have their sum and ``QUANTILES``, between values linear; the loss its quantiles where
    it is finite; what few rows tell its sum, null where none does.
    """
    rank, step = (rows.column(name).to_numpy() for name in ("rank", "step"))
    group, begins, order = _group(rank, minutes, stretches)
    ends = np.append(begins[1:], len(rank))
    ordered_step, first = step[order], order[begins]
    loss = rows.column("loss").to_numpy().astype(np.float64)
    flagged = (rows.column("flags").to_numpy() & _NONFINITE) != 0
    columns = {
        "rank": rank[first],
        "minute": minutes[first],
        "first_step": np.minimum.reduceat(ordered_step, begins),
        "last_step": np.maximum.reduceat(ordered_step, begins),
        "steps": ends - begins,
        "nonfinite": np.add.reduceat(flagged[order].astype(np.int64), begins),
    }
    for name in _COUNTS:
        values = rows.column(name).to_numpy()[order].astype(np.int64)
        columns[f"{name}_sum"] = np.add.reduceat(values, begins)
    for name in DURATIONS:
        values = rows.column(name).to_numpy().astype(np.float64)
        columns[f"{name}_sum"] = np.add.reduceat(values[order], begins)
        columns |= _quantiles(name, values, group, begins)
    columns |= _quantiles("loss", np.where(np.isfinite(loss), loss, np.nan), group, begins)
    types = {name: MINUTE_TYPES.get(name, pa.float32()) for name in columns}
    table = pa.table({name: pa.array(columns[name], kind) for name, kind in types.items()})
    for name, values in _rare_sums(rows, order, begins):
        table = table.append_column(name, values)
    return table


def _group(*keys: Integers) -> tuple[Integers, Integers, Integers]:
    """Group of each row [rows], where each begins in their order [groups], and that [rows]."""
    order = np.lexsort(keys[::-1])
    is_new = np.any([np.diff(key[order]) != 0 for key in keys], axis=0)
    begins = np.flatnonzero(np.concatenate([[True], is_new])[: len(order)])
    group = np.empty(len(order), dtype=np.int64)
    group[order] = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, len(order))))
    return group, begins, order


def _quantiles(name: str, values: Matrix, group: Integers, begins: Integers) -> dict[str, Matrix]:
    """Quantiles of the values [rows] in each group by their columns; NaN counts nowhere."""
    ordered = values[np.lexsort((values, group))]
    last = np.maximum(np.bincount(group[~np.isnan(values)], minlength=len(begins)) - 1, 0)
    found = {}
    for quantile, share in QUANTILES.items():
        position = share * last
        lower = np.floor(position).astype(np.int64)
        low, high = ordered[begins + lower], ordered[begins + np.minimum(lower + 1, last)]
        found[f"{name}_{quantile}"] = low + (position - lower) * (high - low)
    return found


def _rare_sums(rows: pa.Table, order: Integers, begins: Integers) -> Iterator[tuple[str, pa.Array]]:
    """Sums of the seconds that few rows tell, null where none of a group does."""
    for name in RARE:
        stored = [n for n in (name, nanoseconds_name(name)) if n in rows.column_names]
        column = rows.column(stored[0]) if stored else pa.nulls(len(rows), pa.float64())
        is_known = column.is_valid().to_numpy(zero_copy_only=False)[order]
        values = column.fill_null(0).to_numpy()[order]
        sums = np.add.reduceat(values, begins) * (1.0 if stored == [name] else NANOSECOND)
        yield f"{name}_sum", pa.array(sums, mask=~np.logical_or.reduceat(is_known, begins))


def join_minutes(
    tables: Sequence[pa.Table], attempt: ThinnedAttempt, time: float, findings: bytes
) -> Thinned:
    """What the minutes of all ranks, tables with the columns ``READ``, tell of the job."""
    table = pa.concat_tables([pa.table({n: pa.array([], MINUTE_TYPES[n]) for n in READ}), *tables])
    columns = {name: table.column(name).to_numpy() for name in READ}
    begins_of_stretches = np.array([first for first, _ in attempt.intact], dtype=np.int64)
    stretch = np.searchsorted(begins_of_stretches, columns["first_step"])
    group, begins, order = _group(stretch, columns["minute"])
    medians = {
        phase or "step": _quantiles("", columns[name], group, begins)["_p50"]
        for phase, name in zip(("", *STEP_PHASES), _MEDIANS, strict=True)
    }
    return Thinned(
        time=time,
        findings=findings,
        intact=attempt.intact,
        num_thinned=attempt.num_thinned,
        begin=columns["minute"][order[begins]] * float(SECONDS),
        first=np.minimum.reduceat(columns["first_step"][order], begins),
        last=np.maximum.reduceat(columns["last_step"][order], begins),
        medians=medians,
    )
