"""Reads the rank pages of one attempt: NumPy over the rings, no loop over steps."""

import mmap
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_catalogue.vocabulary import Clock
from lockstep_records.files.jobs import list_pages
from lockstep_records.files.last_output import read_error, read_output
from lockstep_records.page.layout import ROW, ROW_FLAGS
from lockstep_records.page.liveness import find_process
from lockstep_records.page.reader import Page, PageError, read_page, read_ring
from lockstep_records.page.replicas import unseen_in
from lockstep_reports.arrays import GrowingMatrix, Integers, Matrix, dtype_of, zeros
from lockstep_reports.readers.page_rows import (
    QUEUED,
    STOPPED,
    blocked_by_row,
    column,
    phase_column,
    queued_outside,
    where_present,
)
from lockstep_reports.readers.plugin_pages import join_plugin
from lockstep_reports.recording.steps import MAX_CELLS, Member, Steps, as_shared
from lockstep_reports.recording.window import Window, steps_inside, window_note
from lockstep_reports.wording import plural

ROW_DTYPE = dtype_of(ROW)
COLLECTION = "collection_seconds"
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
_WHOLE, _ROUNDS = Window(), ("sync_rounds", "independent_rounds")
_WRITTEN = np.float32
_ROUNDING = 1e-6
"""Durations are as precise as in a row: clocks and counts need more."""
_LEFT_OUT = "Left out: "
_NO_ROWS = np.empty(0, dtype=ROW_DTYPE)
_BLOCKED = "blocked_seconds"
_OUTSIDE = "run_queue_outside_seconds"
_WAITS = {
    "run_queue": _OUTSIDE, "blocked": _BLOCKED, "stopped": STOPPED, "collection": COLLECTION,
}  # fmt: skip


class NoStepsError(ValueError):
    """An attempt from which no steps can be read; the text says why."""


class RowSource(Protocol):
    """Pages of some ranks, and their rows, which are read when they are needed."""

    @property
    def pages(self) -> Sequence[Page]:
        """The pages, one a rank."""

    def survey(self) -> Iterator[NDArray[np.void]]:
        """Of each page all rows; fields beside step, flags and phase_seconds may lack."""

    def rows(self, first_step: int, last_step: int) -> Iterator[NDArray[np.void]]:
        """Of each page the rows, at least those of these steps and of one more before."""


class _Ring:
    """The rows of one page, in memory until they are taken."""

    def __init__(self, page: Page, rows: NDArray[np.void]) -> None:
        self.pages, self._rows = (page,), rows

    def survey(self) -> Iterator[NDArray[np.void]]:
        yield self._rows

    def rows(self, first_step: int, last_step: int) -> Iterator[NDArray[np.void]]:
        del first_step, last_step
        # The rows of all ranks are larger than what is kept of them: they go one by one.
        rows, self._rows = self._rows, _NO_ROWS
        yield rows


class _Survey:
    """Which steps there are, and which of them a device timed, over all ranks.

    Attributes:
        every: numbers of all steps; ``timed`` of those that a device timed, ``selected`` of these
            and of those whose host's row tells more [steps].
        num_host: rows that only the host timed.
    """

    def __init__(self, sources: Sequence[RowSource]) -> None:
        every, timed, selected = (dict[bytes, Integers]() for _ in range(3))
        self.num_host = 0
        last: NDArray[np.void] | None = None
        for rows in chain.from_iterable(source.survey() for source in sources):
            on_device = _is_on_device(rows)
            self.num_host += int((~on_device).sum())
            if rows is last:
                continue
            last = rows
            _note(every, rows["step"])
            if on_device.any():
                _note(timed, rows["step"][on_device])
            _note(selected, rows["step"][_is_selected(rows)])
        self.every, self.timed, self.selected = map(_union, (every, timed, selected))


def _note(seen: dict[bytes, Integers], numbers: Integers) -> None:
    # Most ranks have the same steps.
    seen.setdefault(numbers.tobytes(), numbers)


def _union(seen: dict[bytes, Integers]) -> Integers:
    return np.unique(np.concatenate([np.empty(0, dtype=np.int64), *seen.values()]))


def read_pages(folder: Path, max_cells: int = MAX_CELLS) -> tuple[Steps, tuple[Page, ...]]:
    """The steps of all readable pages of an attempt, as many as there are cells, and the pages.

    Raises:
        NoStepsError: no page is readable, or the pages contradict each other.
    """
    notes: list[str] = []
    sources = read_rings(folder, notes)
    if not sources:
        why = notes[0].removeprefix(_LEFT_OUT)[:-1] if notes else "it holds no rank pages"
        raise NoStepsError(f"no page of attempt {folder} can be read: {why}")
    return join(sources, notes, max_cells)


def join(
    sources: Sequence[RowSource],
    notes: list[str],
    max_cells: int = MAX_CELLS,
    window: Window = _WHOLE,
) -> tuple[Steps, tuple[Page, ...]]:
    """The steps of some sources, and their pages by rank; each rank has one.

    Of a window between steps nothing else is read, where what lies outside changes nothing.

    Raises:
        NoStepsError: the pages contradict each other.
    """
    pages = sorted(chain.from_iterable(s.pages for s in sources), key=lambda p: p.identity["rank"])
    _check_same_world(pages)
    survey = _Survey(sources)
    clock: Clock = "device" if len(survey.timed) else "host"
    numbers, represented, by_host = survey.every, None, np.zeros(0, dtype=np.int64)
    if clock == "device":
        notes.append(_clock_note(pages, survey))
        if any(page.periodic.get("device_stride") for page in pages):
            numbers, represented, by_host = _select_timed(survey)
    judged = _newest_numbers(numbers, len(pages), max_cells, notes)
    represented = None if represented is None else represented[-len(judged) :]
    # Rounds are found over all steps.
    has_rounds = any(page.periodic.get(name) for page in pages for name in _ROUNDS)
    inside = steps_inside(judged, _WHOLE if has_rounds else window)
    if not inside.all():
        notes.append(window_note(int(np.count_nonzero(inside)), len(judged)))
        represented = None if represented is None else represented[inside]
    numbers = judged[inside]
    matrices = _matrices(sources, pages, numbers, clock, (judged, by_host))
    notes += join_plugin(pages, matrices)
    steps = _build(pages, numbers, matrices, clock, notes)
    return as_shared(replace(steps, represented=represented)), tuple(pages)


def _build(
    pages: Sequence[Page],
    numbers: Integers,
    matrices: dict[str, Matrix],
    clock: Clock,
    notes: Sequence[str],
) -> Steps:
    copied: dict[str, Any] = {n: matrices[n] for n in ("seconds", *_TIMES, "loss", *_LOADS)}
    copied |= {name: _unless_unknown(matrices[column]) for name, column in _WAITS.items()}
    if clock == "device":
        copied |= {"blocked": None, "host_bound": matrices["host_bound_seconds"]}
    if not any(page.periodic["collection_seconds"] for page in pages):
        copied["collection"] = zeros(matrices["seconds"].shape)
    seconds = float(np.nansum(matrices["seconds"]))
    copied["queued_ratio"] = float(np.nansum(matrices[QUEUED])) / seconds if seconds else 0.0
    return Steps(
        **{name: pages[0].identity[name] for name in _SHARED_FIELDS},
        members=tuple(map(_member, pages)),
        numbers=numbers,
        phases={phase: matrices[phase] for phase in STEP_PHASES},
        **copied,
        notes=tuple(notes),
        by_device=matrices["device"],
        not_finite=matrices["nonfinite"],
        hung=matrices["hang"],
        has_phases=not all(page.is_of_plugin for page in pages),
    )


def _newest_numbers(
    numbers: Integers, num_ranks: int, max_cells: int, notes: list[str]
) -> Integers:
    """Numbers of the newest steps that fit into the cells; ``notes`` takes a sentence on others."""
    max_steps = max(1, max_cells // num_ranks)
    if len(numbers) > max_steps:
        notes.append(f"Only the newest {max_steps:,} of {len(numbers):,} steps are judged.")
    return numbers[-max_steps:]


def read_rings(
    folder: Path, notes: list[str], stems: AbstractSet[str] | None = None
) -> list[RowSource]:
    """Readable pages by rank, or some of them; ``notes`` takes sentences about the others."""
    rings: dict[int, RowSource] = {}
    unreadable = []
    for path in list_pages(folder):
        if stems is not None and path.stem not in stems:
            continue
        try:
            page = read_page(path)
            rows = _read_rows(page)
        except PageError as error:
            unreadable.append(str(error))
            continue
        if page.identity["rank"] in rings:
            notes.append(f"A second page of rank {page.identity['rank']} is left out: {path.name}.")
            continue
        rings[page.identity["rank"]] = _Ring(page, possible_rows(rows))
    notes += [f"{_LEFT_OUT}{text}." for text in unreadable]
    return [rings[rank] for rank in sorted(rings)]


def possible_rows(rows: NDArray[np.void]) -> NDArray[np.void]:
    """Those of the rows that can be true."""
    # A checksum does not stop a writer from writing nonsense.
    return _select(rows, (rows["seconds"] >= 0) & (rows["seconds"] <= _MAX_STEP_SECONDS))


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


def _check_same_world(pages: Sequence[Page]) -> None:
    for name in ("world_size", "job_id", "attempt"):
        page_by_value = {page.identity[name]: page for page in pages}
        if len(page_by_value) > 1:
            (value, page), (other, other_page) = list(page_by_value.items())[:2]
            raise NoStepsError(
                f"{name} differs inside one attempt: {value} in {page.path}, {other} in "
                f"{other_page.path}; keep only the pages of one run there"
            )


def _member(page: Page) -> Member:
    identity = page.identity
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


def _select_timed(survey: _Survey) -> tuple[Integers, Matrix, Integers]:
    """The steps without those that no device timed, where devices time only some of the steps.

    Returns how many steps each of the others represents, too, and which have the host's times:
    those in which a host stood still, wrote a checkpoint, evaluated or was flagged.
    """
    selected, timed = survey.selected, survey.timed
    left_out = np.setdiff1d(survey.every, selected)
    before = np.clip(np.searchsorted(timed, left_out, side="right") - 1, 0, None)
    represented = np.ones(len(selected))
    columns = np.searchsorted(selected, timed)
    represented[columns] += np.bincount(before, minlength=len(timed))
    return selected, represented, np.setdiff1d(selected, timed)


def _is_selected(rows: NDArray[np.void]) -> NDArray[np.bool_]:
    """Whether a device timed the row's step, or the host's row tells more [rows]."""
    is_flagged = (rows["flags"] & _TELLING_BITS) != 0
    is_pause = (phase_column(rows, "checkpoint") > 0) | (phase_column(rows, "eval") > 0)
    is_selected: NDArray[np.bool_] = _is_on_device(rows) | is_flagged | is_pause
    return is_selected


def _clock_note(pages: Sequence[Page], survey: _Survey) -> str:
    note = "All times are those of the devices' streams."
    stride = max(page.periodic.get("device_stride") or 1 for page in pages)
    if stride > 1:
        note += (
            f" One step in {stride} was timed, for events cost more than a thousandth of such short"
            " steps; each timed step represents those up to the next."
        )
    elif survey.num_host:
        rows = plural(survey.num_host, "row")
        note += f" {rows} that only the host timed, such as the last before the end, are left out."
    return note


def _matrices(
    sources: Sequence[RowSource],
    pages: Sequence[Page],
    numbers: Integers,
    clock: Clock,
    judged_by_host: tuple[Integers, Integers],
) -> dict[str, Matrix]:
    """Fields of the rows by name [ranks, steps]; NaN where a rank has no row of the step.

    Waits are shares among all judged steps, of which the numbers are some. Times by another clock
    than this one are NaN as well, but in the steps ``by_host``. The sources have no rows any more
    afterwards.
    """
    judged, by_host = judged_by_host
    by_clock = ("seconds", "host_bound_seconds", *STEP_PHASES, *_TIMES)
    names = (*by_clock, "loss", QUEUED, *_WAITS.values(), *_FLAGS, *_LOADS)
    exact = {*_TIMES, *_LOADS}
    matrices = {
        name: GrowingMatrix((len(pages), len(numbers)), np.float64 if name in exact else _WRITTEN)
        for name in names
    }
    row_of = {page.identity["rank"]: row for row, page in enumerate(pages)}
    span = (int(numbers[0]), int(numbers[-1])) if len(numbers) else (0, -1)
    for source in sources:
        for page, all_rows in zip(source.pages, source.rows(*span), strict=True):
            rows = _select(all_rows, _is_among(all_rows["step"], judged))
            is_inside = _is_among(rows["step"], numbers)
            columns = np.searchsorted(numbers, rows["step"][is_inside])
            is_right = None
            if clock == "device":
                is_right = _is_on_device(rows) | np.isin(rows["step"], by_host)
            for name in names:
                values = _column(page, rows, name)
                if is_right is not None and name in by_clock:
                    values = np.where(is_right, values, np.nan)
                # Of a step that was written twice the last row counts.
                values = values if len(values) == len(columns) else values[is_inside]
                matrices[name].fill(row_of[page.identity["rank"]], columns, values)
    return {name: matrix.values for name, matrix in matrices.items()}


def _is_among(steps: Integers, numbers: Integers) -> NDArray[np.bool_]:
    """Which steps [rows] are among ascending numbers."""
    if not len(numbers):
        return np.zeros(len(steps), dtype=bool)
    nearest = numbers[np.minimum(np.searchsorted(numbers, steps), len(numbers) - 1)]
    is_among: NDArray[np.bool_] = nearest == steps
    return is_among


def _column(page: Page, rows: NDArray[np.void], name: str) -> Matrix:
    """One field of the rows [rows]; NaN where it is unknown or cannot be true."""
    if name in _TIMES:
        return where_present(rows, f"{name}_ns", _wall(page, rows[f"{name}_ns"]))
    if name in _FLAGS:
        return (rows["flags"] & _BITS[name] > 0).astype(np.float64)
    if name in _DERIVED:
        return _DERIVED[name](rows)
    if name in STEP_PHASES:
        values = phase_column(rows, name)
        return np.where(values >= 0, np.minimum(values, _MAX_STEP_SECONDS), np.nan)
    return column(rows, name)


def _cover_phases(rows: NDArray[np.void]) -> Matrix:
    """Seconds of each step [rows], not shorter than its phases by the error of rounding them."""
    seconds, total = rows["seconds"], np.zeros(len(rows), dtype=_WRITTEN)
    for index in range(len(STEP_PHASES)):
        total += rows["phase_seconds"][:, index]
    is_rounded = (total > seconds) & (total <= seconds * _WRITTEN(1 + _ROUNDING))
    return np.where(is_rounded, total, seconds)


def _unless_unknown(values: Matrix) -> Matrix | None:
    return None if np.isnan(values).all() else values


def _wall(page: Page, monotonic_ns: Integers) -> Matrix:
    """Monotonic times as wall clock seconds [rows]; NaN where the clock is damaged."""
    created_ns = page.identity["start_monotonic_ns"]
    since_created = (monotonic_ns.astype(np.float64) - float(created_ns)) / 1e9
    wall = page.wall_seconds(created_ns) + since_created
    low, high = _WALL_RANGE
    return np.where((wall > low) & (wall < high), wall, np.nan)


_DERIVED = {_BLOCKED: blocked_by_row, _OUTSIDE: queued_outside, "seconds": _cover_phases}
