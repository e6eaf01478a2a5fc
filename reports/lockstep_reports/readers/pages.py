"""Reads the rank pages of one attempt: NumPy over the rings, no loop over steps."""

import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep_catalogue.labels import OWN_WORK_PHASES, STEP_PHASES
from lockstep_catalogue.vocabulary import Clock
from lockstep_records.files.jobs import list_pages
from lockstep_records.files.last_output import read_error, read_output
from lockstep_records.page.layout import EXTRAS, ROW, ROW_FLAGS
from lockstep_records.page.liveness import find_process
from lockstep_records.page.reader import Page, PageError, read_page, read_ring
from lockstep_records.page.replicas import unseen_in
from lockstep_reports.arrays import Integers, Matrix, dtype_of
from lockstep_reports.readers.plugin_pages import JOINED, join_arrivals, plugin_notes
from lockstep_reports.recording.steps import MAX_CELLS, Member, Steps, as_shared
from lockstep_reports.wording import plural

ROW_DTYPE = dtype_of(ROW)
QUEUED, STOPPED, COLLECTION = "run_queue_seconds", "stopped_seconds", "collection_seconds"
_EXTRAS = {name: index for index, name in enumerate(EXTRAS)}
_MAX_STEP_SECONDS = 30 * 86400.0
_WALL_RANGE = (0.0, 4e9)  # 1970 to 2096; anything else is a damaged clock
_TIMES = ("start", "last_arrival")
_SHARED_FIELDS = ("job_id", "cluster", "project", "attempt", "world_size")
_LOADS = ("tokens", "sequence_squares")
_FLAGS = ("device", "nonfinite", "hang")
_BITS = {name: 1 << ROW_FLAGS.index(name) for name in _FLAGS}
_DEVICE_BIT = _BITS["device"]
_TELLING_FLAGS = ("hang", "nonfinite", "loss_spike", "divergence", "out_of_memory")
_TELLING_BITS = sum(1 << ROW_FLAGS.index(name) for name in _TELLING_FLAGS)
_NO_ROWS = np.empty(0, dtype=ROW_DTYPE)
_BLOCKED = "blocked_seconds"
_WAITS = {"run_queue": QUEUED, "blocked": _BLOCKED, "stopped": STOPPED, "collection": COLLECTION}


class NoStepsError(ValueError):
    """An attempt from which no steps can be read; the text says why."""


class _Rank(NamedTuple):
    page: Page
    rows: NDArray[np.void]


def read_pages(folder: Path, max_cells: int = MAX_CELLS) -> tuple[Steps, tuple[Page, ...]]:
    """The steps of all readable pages of an attempt, as many as there are cells, and the pages.

    Raises:
        NoStepsError: no page is readable, or the pages contradict each other.
    """
    notes: list[str] = []
    ranks = _read_ranks(folder, notes)
    _check_same_world(ranks)
    notes += plugin_notes([rank.page for rank in ranks])
    if join_arrivals([(rank.page, rank.rows) for rank in ranks]):
        notes.append(JOINED)
    clock: Clock = "device" if any(_is_on_device(r.rows).any() for r in ranks) else "host"
    represented, by_host = None, np.zeros(0, dtype=np.int64)
    if clock == "device":
        notes.append(_clock_note(ranks))
        ranks, represented, by_host = _select_timed(ranks)
    numbers = _newest_numbers(ranks, max_cells, notes)
    matrices = _matrices(ranks, numbers, clock, by_host)
    copied: dict[str, Any] = {n: matrices[n] for n in ("seconds", *_TIMES, "loss", *_LOADS)}
    copied |= {name: _unless_unknown(matrices[column]) for name, column in _WAITS.items()}
    if clock == "device":
        copied |= {"blocked": None, "host_bound": matrices["host_bound_seconds"]}
    if not any(rank.page.periodic["collection_seconds"] for rank in ranks):
        copied["collection"] = np.zeros_like(matrices["seconds"])
    steps = Steps(
        **{name: ranks[0].page.identity[name] for name in _SHARED_FIELDS},
        members=tuple(_member(rank) for rank in ranks),
        numbers=numbers,
        phases={phase: matrices[phase] for phase in STEP_PHASES},
        **copied,
        notes=tuple(notes),
        by_device=matrices["device"],
        represented=None if represented is None else represented[-len(numbers) :],
        not_finite=matrices["nonfinite"],
        hung=matrices["hang"],
    )
    return as_shared(steps), tuple(rank.page for rank in ranks)


def _newest_numbers(ranks: list[_Rank], max_cells: int, notes: list[str]) -> NDArray[np.int64]:
    """Numbers of the newest steps that fit into the cells; ``notes`` takes a sentence on others."""
    numbers = np.unique(np.concatenate([rank.rows["step"] for rank in ranks]))
    max_steps = max(1, max_cells // len(ranks))
    if len(numbers) > max_steps:
        notes.append(f"Only the newest {max_steps:,} of {len(numbers):,} steps are judged.")
    return numbers[-max_steps:]


def _read_ranks(folder: Path, notes: list[str]) -> list[_Rank]:
    """Readable pages by rank; ``notes`` takes sentences about the others."""
    ranks: dict[int, _Rank] = {}
    unreadable = []
    for path in list_pages(folder):
        try:
            page = read_page(path)
            rows = _read_rows(page)
        except PageError as error:
            unreadable.append(str(error))
            continue
        if page.identity["rank"] in ranks:
            notes.append(f"A second page of rank {page.identity['rank']} is left out: {path.name}.")
            continue
        # A checksum does not stop a writer from writing nonsense.
        is_possible = (rows["seconds"] >= 0) & (rows["seconds"] <= _MAX_STEP_SECONDS)
        ranks[page.identity["rank"]] = _Rank(page, _select(rows, is_possible))
    notes += [f"Left out: {text}." for text in unreadable]
    if not ranks:
        why = unreadable[0] if unreadable else "it holds no rank pages"
        raise NoStepsError(f"no page of attempt {folder} can be read: {why}")
    return [ranks[rank] for rank in sorted(ranks)]


def _read_rows(page: Page) -> NDArray[np.void]:
    """The rows of a page [rows]; raises PageError.

    In memory of their own: what an allocator has freed between others' it does not give back.
    """
    data = read_ring(page)
    memory = mmap.mmap(-1, max(1, len(data)), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(data)
    return np.frombuffer(memory, dtype=ROW_DTYPE, count=len(data) // ROW_DTYPE.itemsize)


def _select(rows: NDArray[np.void], chosen: NDArray[np.bool_]) -> NDArray[np.void]:
    """Some of the rows; a copy only where there are others."""
    return rows if chosen.all() else rows[chosen]


def _check_same_world(ranks: Sequence[_Rank]) -> None:
    for name in ("world_size", "job_id", "attempt"):
        page_by_value = {rank.page.identity[name]: rank.page for rank in ranks}
        if len(page_by_value) > 1:
            (value, page), (other, other_page) = list(page_by_value.items())[:2]
            raise NoStepsError(
                f"{name} differs inside one attempt: {value} in {page.path}, {other} in "
                f"{other_page.path}; keep only the pages of one run there"
            )


def _member(rank: _Rank) -> Member:
    page, identity = rank.page, rank.page.identity
    return Member(
        rank=identity["rank"],
        node=identity["node"],
        gpu_uuid=identity["gpu_uuid"],
        mesh=identity["mesh"],
        page_created_seconds=page.wall_seconds(identity["start_monotonic_ns"]),
        phase=page.phase,
        progress_seconds=page.progress_wall_seconds,
        last_step=page.state["step"],
        allocator_retries=page.periodic["allocator_retries"] or 0,
        loader_workers=page.periodic.get("loader_workers") or 0,
        batches_ahead=page.periodic.get("batches_ahead") or 0,
        sync_rounds=(num_rounds := page.periodic.get("sync_rounds") or 0),
        independent_rounds=page.periodic.get("independent_rounds") or 0,
        staleness_steps=(page.periodic["staleness_sum"] or 0) / num_rounds if num_rounds else None,
        unseen=tuple(map(str, unseen_in(page.periodic))),
        exception=str(error) if (error := read_error(page.path)) is not None else None,
        last_output=read_output(page.path),
        # Without a lock the pid tells the process, which on a copy is another machine's.
        is_running=find_process(page) is not None if identity["locked"] else None,
    )


def _is_on_device(rows: NDArray[np.void]) -> NDArray[np.bool_]:
    """Whether the times of rows are those of a device [rows]."""
    on_device: NDArray[np.bool_] = (rows["flags"] & _DEVICE_BIT) != 0
    return on_device


def rows_by_clock(rows: NDArray[np.void], clock: Clock) -> NDArray[np.void]:
    """Those of the rows whose times are by that clock."""
    by_clock: NDArray[np.void] = rows[_is_on_device(rows) == (clock == "device")]
    return by_clock


def _select_timed(ranks: list[_Rank]) -> tuple[list[_Rank], Matrix | None, Integers]:
    """The ranks without steps that no device timed, where devices time only some of the steps.

    Returns how many steps each of the others represents, too, and which have the host's times:
    those in which a host stood still, wrote a checkpoint, evaluated or was flagged.
    """
    if not any(rank.page.periodic.get("device_stride") for rank in ranks):
        return ranks, None, np.zeros(0, dtype=np.int64)
    every = np.unique(np.concatenate([rank.rows["step"] for rank in ranks]))
    selected = np.unique(np.concatenate([r.rows["step"][_is_selected(r.rows)] for r in ranks]))
    timed = np.unique(np.concatenate([r.rows["step"][_is_on_device(r.rows)] for r in ranks]))
    left_out = np.setdiff1d(every, selected)
    before = np.clip(np.searchsorted(timed, left_out, side="right") - 1, 0, None)
    represented = np.ones(len(selected))
    columns = np.searchsorted(selected, timed)
    represented[columns] += np.bincount(before, minlength=len(timed))
    in_selected = [_Rank(r.page, r.rows[np.isin(r.rows["step"], selected)]) for r in ranks]
    return in_selected, represented, np.setdiff1d(selected, timed)


def _is_selected(rows: NDArray[np.void]) -> NDArray[np.bool_]:
    """Whether a device timed the row's step, or the host's row tells more [rows]."""
    is_flagged = (rows["flags"] & _TELLING_BITS) != 0
    is_pause = (phase_column(rows, "checkpoint") > 0) | (phase_column(rows, "eval") > 0)
    is_selected: NDArray[np.bool_] = _is_on_device(rows) | is_flagged | is_pause
    return is_selected


def _clock_note(ranks: Sequence[_Rank]) -> str:
    num_host = sum(int((~_is_on_device(rank.rows)).sum()) for rank in ranks)
    note = "All times are those of the devices' streams."
    stride = max(rank.page.periodic.get("device_stride") or 1 for rank in ranks)
    if stride > 1:
        note += (
            f" One step in {stride} was timed, for events cost more than a thousandth of such short"
            " steps; each timed step represents those up to the next."
        )
    elif num_host:
        rows = plural(num_host, "row")
        note += f" {rows} that only the host timed, such as the last before the end, are left out."
    return note


def _matrices(
    ranks: list[_Rank], numbers: Integers, clock: Clock, by_host: Integers
) -> dict[str, Matrix]:
    """Fields of the rows by name [ranks, steps]; NaN where a rank has no row of the step.

    Times by another clock than this one are NaN as well, but in the steps ``by_host``. The ranks
    have no rows any more afterwards.
    """
    by_clock = ("seconds", "host_bound_seconds", *STEP_PHASES, *_TIMES)
    names = (*by_clock, "loss", *_WAITS.values(), *_FLAGS, *_LOADS)
    matrices = {name: np.empty((len(ranks), len(numbers))) for name in names}
    for row, (page, all_rows) in enumerate(ranks):
        # The rows of all ranks are larger than what is kept of them: they go one by one.
        ranks[row] = _Rank(page, _NO_ROWS)
        rows = _select(all_rows, all_rows["step"] >= numbers[0]) if len(numbers) else all_rows
        columns = np.searchsorted(numbers, rows["step"])
        is_right = None
        if clock == "device":
            is_right = _is_on_device(rows) | np.isin(rows["step"], by_host)
        for name in names:
            values = _column(page, rows, name)
            if is_right is not None and name in by_clock:
                values = np.where(is_right, values, np.nan)
            matrices[name][row] = np.nan
            # Of a step that was written twice the last row counts.
            matrices[name][row, columns] = values
    return matrices


def _column(page: Page, rows: NDArray[np.void], name: str) -> Matrix:
    """One field of the rows [rows]; NaN where it is unknown or cannot be true."""
    if name in _TIMES:
        return where_present(rows, f"{name}_ns", _wall(page, rows[f"{name}_ns"]))
    if name in _FLAGS:
        return (rows["flags"] & _BITS[name] > 0).astype(np.float64)
    if name == _BLOCKED:
        return blocked_by_row(rows)
    if name == QUEUED:
        return waits_by_row(column(rows, name), rows["seconds"])
    if name in STEP_PHASES:
        values = phase_column(rows, name)
        return np.where(values >= 0, np.minimum(values, _MAX_STEP_SECONDS), np.nan)
    return column(rows, name)


def _unless_unknown(values: Matrix) -> Matrix | None:
    return None if np.isnan(values).all() else values


def _wall(page: Page, monotonic_ns: Integers) -> Matrix:
    """Monotonic times as wall clock seconds [rows]; NaN where the clock is damaged."""
    created_ns = page.identity["start_monotonic_ns"]
    since_created = (monotonic_ns.astype(np.float64) - float(created_ns)) / 1e9
    wall = page.wall_seconds(created_ns) + since_created
    low, high = _WALL_RANGE
    return np.where((wall > low) & (wall < high), wall, np.nan)


def column(rows: NDArray[np.void], name: str) -> Matrix:
    """A field of the rows, or one of their extras [rows]; NaN where it is unknown."""
    extra = _EXTRAS.get(name)
    values = rows[name] if extra is None else rows["extras"][:, extra]
    return where_present(rows, name, values.astype(np.float64))


def where_present(rows: NDArray[np.void], name: str, values: Matrix) -> Matrix:
    """Values [rows] whose presence bit is set; NaN for the others."""
    bit = ROW.presence.get(name)
    return values if bit is None else np.where(rows["present"] & bit, values, np.nan)


def phase_column(rows: NDArray[np.void], phase: str) -> Matrix:
    """Seconds in a phase [rows]."""
    seconds: Matrix = rows["phase_seconds"][:, STEP_PHASES.index(phase)].astype(np.float64)
    return seconds


def waits_by_row(waits: Matrix, seconds: Matrix) -> Matrix:
    """Seconds that a rank waited for a core in each row [rows]; NaN where unknown.

    ``waits`` are since the row before that has a value; NaN in rows without. A wait lengthens the
    step that it falls into. So of the rows that share one value each gets what makes it longer than
    the shortest of them, and what is left in proportion to its length.
    """
    has_value = np.flatnonzero(~np.isnan(waits))
    by_row = np.full(len(waits), np.nan)
    if not len(has_value):
        return by_row
    covered = slice(0, int(has_value[-1]) + 1)
    # A group of rows ends with the one that has its value.
    starts = np.concatenate([[0], has_value[:-1] + 1])
    sizes = np.diff(np.concatenate([starts, [covered.stop]]))
    lengths = np.nan_to_num(seconds[covered])
    by_row[covered] = _shares(waits[has_value], lengths, starts, sizes)
    return by_row


def _shares(waited: Matrix, lengths: Matrix, starts: Integers, sizes: Integers) -> Matrix:
    """The rows' shares of what was waited in each group [rows]."""

    def spread(values: Matrix) -> Matrix:
        return np.repeat(values, sizes)

    beyond = lengths - spread(np.minimum.reduceat(lengths, starts))
    total_beyond = np.add.reduceat(beyond, starts)
    total = np.add.reduceat(lengths, starts)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.nan_to_num(np.minimum(1.0, waited / total_beyond))
        rest = np.nan_to_num((waited - share * total_beyond) / total)
    shares: Matrix = spread(share) * beyond + spread(rest) * lengths
    return shares


def blocked_by_row(rows: NDArray[np.void]) -> Matrix:
    """Seconds of own work that a rank sleeps [rows]; NaN where unknown.

    It then has no core, does not wait for one, and was not stopped.
    """
    own = np.sum([phase_column(rows, name) for name in OWN_WORK_PHASES], axis=0)
    own -= np.minimum(np.nan_to_num(column(rows, STOPPED)), own)
    spent = column(rows, QUEUED) + column(rows, "core_seconds")
    has_value = np.flatnonzero(~np.isnan(spent))
    before = np.concatenate([[0.0], np.cumsum(own)])[np.append(0, has_value + 1)]
    blocked = np.full(len(rows), np.nan)
    blocked[has_value] = np.maximum(0.0, np.diff(before) - spent[has_value])
    # The first value covers what came after the first read, at a step that nobody wrote down.
    blocked[has_value[:1]] = 0.0
    return waits_by_row(blocked, rows["seconds"])
