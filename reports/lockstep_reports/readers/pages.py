"""Reads the rank pages of one attempt: NumPy over the rings, no loop over steps."""

import mmap
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_catalogue.vocabulary import Clock
from lockstep_records.file_access.foreign_files import scan_foreign
from lockstep_records.files.jobs import MAX_ENTRIES, list_pages
from lockstep_records.files.last_output import ERROR_SUFFIX, OUTPUT_SUFFIX, read_error, read_output
from lockstep_records.files.operations import (
    FROM_PHASES,
    NAMES,
    ON_DEVICE,
    OPERATION,
    SUFFIX,
    operations_path,
    read_operations,
)
from lockstep_records.page.layout import ROW, ROW_FLAGS
from lockstep_records.page.liveness import find_process
from lockstep_records.page.reader import Page, PageError, read_page, read_ring
from lockstep_records.page.replicas import unseen_in
from lockstep_reports.arrays import GrowingMatrix, Integers, Matrix, dtype_of, zeros
from lockstep_reports.readers.page_rows import (
    LOADS,
    MATRIX_TYPES,
    QUEUED,
    TIMES,
    WAITS,
    Part,
    Question,
    Rows,
    are_possible,
    is_on_device,
    phase_column,
    select_rows,
)
from lockstep_reports.readers.plugin_pages import join_plugin
from lockstep_reports.recording.recording import Window, steps_inside, window_note
from lockstep_reports.recording.steps import MAX_CELLS, Member, SampledOperations, Steps, as_shared
from lockstep_reports.wording import plural

ROW_DTYPE = dtype_of(ROW)
_SHARED_FIELDS = ("job_id", "cluster", "project", "attempt", "world_size")
_TELLING_FLAGS = ("hang", "nonfinite", "loss_spike", "divergence", "out_of_memory")
_TELLING_BITS = sum(1 << ROW_FLAGS.index(name) for name in _TELLING_FLAGS)
_DEVICE_BITS = sum(1 << ROW_FLAGS.index(name) for name in ("device", "device_pending"))
_WHOLE, _ROUNDS = Window(), ("sync_rounds", "independent_rounds")
_SIDE_FILE = re.compile(f".*({'|'.join(map(re.escape, (ERROR_SUFFIX, OUTPUT_SUFFIX, SUFFIX)))})")
_LEFT_OUT, ONLY_NEWEST = "Left out: ", "Only the newest"
_NO_ROWS = np.empty(0, dtype=ROW_DTYPE)
OPERATION_COLUMNS = ("rank", "step", "operation", "flags", "duration_ns")
"""What is read of an operation."""
MAX_OPERATIONS = 1 << 23
"""Of all ranks; those of 500 full files, or of 100,000 ranks x 1,000 steps at the usual rate."""
_MAX_SECONDS = 30 * 86400.0


class NoStepsError(ValueError):
    """An attempt from which no steps can be read; the text says why."""


class RowSource(Protocol):
    """Pages of some ranks, and their rows, which are read when they are needed."""

    @property
    def pages(self) -> Sequence[Page]:
        """The pages, one a rank."""

    def survey(self) -> Iterator[Rows]:
        """Of each page all rows; fields beside step and flags may lack.

        Phases are there where a device times only some of the steps.
        """

    def parts(self, question: Question) -> Iterator[tuple[Sequence[Page], Part]]:
        """The fields of all pages, in parts of some pages each."""


class Ring:
    """The rows of one page, in memory until they are taken."""

    def __init__(self, page: Page, rows: Rows) -> None:
        self.pages, self._rows = (page,), rows

    def survey(self) -> Iterator[Rows]:
        """All of them, once."""
        yield self._rows

    def take(self) -> Rows:
        """The rows, which are not kept any longer."""
        rows, self._rows = self._rows, _NO_ROWS
        return rows

    def parts(self, question: Question) -> Iterator[tuple[Sequence[Page], Part]]:
        """The fields of the one page."""
        # The rows of all ranks are larger than what is kept of them: they go one by one.
        rows = self.take()
        yield self.pages, question.answer(self.pages, rows, np.zeros(len(rows), dtype=np.int64))


class _Survey:
    """Which steps there are, and which of them a device timed, over all ranks.

    Attributes:
        every: numbers of all steps; ``timed`` of those that a device timed, and where devices
            time only some ``selected`` of these and of those whose host's row tells more [steps].
        num_device: rows that a device timed, or is to; ``num_host`` that only the host timed.
    """

    def __init__(self, sources: Sequence[RowSource], *, samples: bool) -> None:
        every, timed, selected = (dict[bytes, Integers]() for _ in range(3))
        self.num_device = self.num_host = 0
        last: Rows | None = None
        for rows in chain.from_iterable(source.survey() for source in sources):
            on_device = is_on_device(rows)
            self.num_host += int((~on_device).sum())
            self.num_device += int(np.count_nonzero(rows["flags"] & _DEVICE_BITS))
            if rows is last:
                continue
            last = rows
            _note(every, rows["step"])
            if on_device.any():
                _note(timed, rows["step"][on_device])
            if samples:
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
    samples = is_sampled(pages)
    survey = _Survey(sources, samples=samples)
    # That of most rows, where not only some are timed: a few damaged flags turn no report over.
    is_timed = samples or survey.num_device >= survey.num_host
    clock: Clock = "device" if len(survey.timed) and is_timed else "host"
    numbers, represented, by_host = survey.every, None, np.zeros(0, dtype=np.int64)
    if clock == "device":
        notes.append(_clock_note(pages, survey))
        if samples:
            numbers, represented, by_host = _select_timed(survey)
    # Rounds are found over all steps.
    has_rounds = any(page.periodic.get(name) for page in pages for name in _ROUNDS)
    window = _WHOLE if has_rounds else window
    newest = _find_newest(numbers, max(1, max_cells // len(pages)), window, notes)
    judged = numbers[newest]
    inside = steps_inside(judged, window)
    if not inside.all():
        notes.append(window_note(int(np.count_nonzero(inside)), len(judged)))
    numbers = judged[inside]
    represented = None if represented is None else represented[newest][inside]
    matrices = _matrices(sources, pages, Question(numbers, judged, clock, by_host))
    notes += join_plugin(pages, matrices)
    steps = _build(pages, numbers, matrices, clock, notes)
    return as_shared(replace(steps, represented=represented)), tuple(pages)


def is_sampled(pages: Sequence[Page]) -> bool:
    """Whether devices time only some of the steps."""
    return any(page.periodic.get("device_stride") for page in pages)


def _build(
    pages: Sequence[Page],
    numbers: Integers,
    matrices: dict[str, Matrix],
    clock: Clock,
    notes: Sequence[str],
) -> Steps:
    copied: dict[str, Any] = {n: matrices[n] for n in ("seconds", *TIMES, "loss", *LOADS)}
    copied |= {name: _unless_unknown(matrices[column]) for name, column in WAITS.items()}
    if clock == "device":
        copied |= {"blocked": None, "host_bound": matrices["host_bound_seconds"]}
    if not any(page.periodic["collection_seconds"] for page in pages):
        copied["collection"] = zeros(matrices["seconds"].shape)
    names = frozenset(
        chain.from_iterable(map(_list_side_files, {page.path.parent for page in pages}))
    )
    with_operations = [p for p in pages if operations_path(p.path).name in names]
    unread = list[str]()
    copied["operations"] = read_operation_files(with_operations, unread)
    seconds = float(np.nansum(matrices["seconds"]))
    copied["queued_ratio"] = float(np.nansum(matrices[QUEUED])) / seconds if seconds else 0.0
    return Steps(
        **{name: pages[0].identity[name] for name in _SHARED_FIELDS},
        # Most ranks have said nothing, and a look for each file takes longer than a list of all.
        members=tuple(_member(page, names) for page in pages),
        numbers=numbers,
        phases={phase: matrices[phase] for phase in STEP_PHASES},
        **copied,
        notes=(*notes, *unread),
        by_device=matrices["device"],
        not_finite=matrices["nonfinite"],
        hung=matrices["hang"],
        has_phases=not all(page.is_of_plugin for page in pages),
    )


def _find_newest(numbers: Integers, max_steps: int, window: Window, notes: list[str]) -> slice:
    """Where the newest steps are, up to the end of a window if these are too many.

    ``notes`` takes a sentence on the others.
    """
    stop = len(numbers)
    if stop > max_steps:
        stop = 1 + int(np.flatnonzero(steps_inside(numbers, Window(last=window.last)))[-1])
    if stop > max_steps:
        notes.append(f"{ONLY_NEWEST} {max_steps:,} of {stop:,} steps are judged.")
    return slice(max(0, stop - max_steps), stop)


def read_rings(folder: Path, notes: list[str], stems: AbstractSet[str] | None = None) -> list[Ring]:
    """Readable pages by rank, or some of them; ``notes`` takes sentences about the others."""
    rings: dict[int, Ring] = {}
    unreadable, num_damaged = [], 0
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
        is_possible = are_possible(rows)
        num_damaged += int(np.count_nonzero(~is_possible))
        rings[page.identity["rank"]] = Ring(page, select_rows(rows, is_possible))
    notes += [f"{_LEFT_OUT}{text}." for text in unreadable]
    notes += [f"{_LEFT_OUT}{damaged_rows(num_damaged)}."] if num_damaged else []
    return [rings[rank] for rank in sorted(rings)]


def damaged_rows(count: int) -> str:
    """In words, how many rows are damaged."""
    return f"{plural(count, 'row')} with values that no step has, or that are damaged"


def _read_rows(page: Page) -> NDArray[np.void]:
    """The rows of a page [rows]; raises PageError.

    In memory of their own: what an allocator has freed between others' it does not give back.
    """
    data = read_ring(page)
    memory = mmap.mmap(-1, max(1, len(data)), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(data)
    return np.frombuffer(memory, dtype=ROW_DTYPE, count=len(data) // ROW_DTYPE.itemsize)


def _check_same_world(pages: Sequence[Page]) -> None:
    for name in ("world_size", "job_id", "attempt"):
        page_by_value = {page.identity[name]: page for page in pages}
        if len(page_by_value) > 1:
            (value, page), (other, other_page) = list(page_by_value.items())[:2]
            raise NoStepsError(
                f"{name} differs inside one attempt: {value} in {page.path}, {other} in "
                f"{other_page.path}; keep only the pages of one run there"
            )


def _list_side_files(folder: Path) -> Iterator[str]:
    return scan_foreign(folder, _SIDE_FILE, MAX_ENTRIES)


def _member(page: Page, names: AbstractSet[str]) -> Member:
    """What is known of a rank, in whose folder there are files of some names."""
    identity = page.identity
    error = read_error(page.path) if page.path.stem + ERROR_SUFFIX in names else None
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
        exception=None if error is None else str(error),
        last_output=read_output(page.path) if page.path.stem + OUTPUT_SUFFIX in names else None,
        # Without a lock the pid tells the process, which on a copy is another machine's.
        is_running=find_process(page) is not None if identity["locked"] else None,
    )


def rows_by_clock(rows: NDArray[np.void], clock: Clock) -> NDArray[np.void]:
    """Those of the rows whose times are by that clock."""
    by_clock: NDArray[np.void] = rows[is_on_device(rows) == (clock == "device")]
    return by_clock


def _matrices(
    sources: Sequence[RowSource], pages: Sequence[Page], question: Question
) -> dict[str, Matrix]:
    """Fields of the rows by name [ranks, steps]; the sources have no rows any more afterwards."""
    shape = len(pages), len(question.numbers)
    matrices = {name: GrowingMatrix(shape, kind) for name, kind in MATRIX_TYPES.items()}
    row_of = {page.identity["rank"]: row for row, page in enumerate(pages)}
    for some, part in chain.from_iterable(source.parts(question) for source in sources):
        rows = np.array([row_of[page.identity["rank"]] for page in some])
        for name, values in part.items():
            matrices[name].fill(rows, values)
    return {name: matrix.values for name, matrix in matrices.items()}


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


def _is_selected(rows: Rows) -> NDArray[np.bool_]:
    """Whether a device timed the row's step, or the host's row tells more [rows]."""
    is_flagged = (rows["flags"] & _TELLING_BITS) != 0
    is_pause = (phase_column(rows, "checkpoint") > 0) | (phase_column(rows, "eval") > 0)
    is_selected: NDArray[np.bool_] = is_on_device(rows) | is_flagged | is_pause
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


def _unless_unknown(values: Matrix) -> Matrix | None:
    return None if np.isnan(values).all() else values


def sum_operations(columns: Mapping[str, NDArray[Any]]) -> SampledOperations:
    """Sums of ``OPERATION_COLUMNS`` [rows], all rows of their ranks, by rank, step and name.

    Of a rank that a device timed the phases of its host do not count beside the device's.
    """
    rank, step, code, flags, nanoseconds = (columns[name] for name in OPERATION_COLUMNS)
    seconds = nanoseconds * 1e-9
    is_timed = (flags & ON_DEVICE) > 0
    chosen = (code >= 0) & (code < len(NAMES)) & (seconds < _MAX_SECONDS)
    chosen &= is_timed | ((flags & FROM_PHASES) == 0) | ~np.isin(rank, rank[is_timed])
    keys = np.stack([rank, step, code]).astype(np.int64)[:, chosen]
    order = np.lexsort(keys[::-1])
    keys = keys[:, order]
    first = np.flatnonzero((np.diff(keys, prepend=-2) != 0).any(axis=0))
    sums = np.add.reduceat(seconds[chosen][order], first) if len(first) else seconds[:0]
    rank, step, code = keys[:, first]
    return SampledOperations(rank=rank, step=step, code=code, seconds=sums)


def join_operations(parts: Iterable[SampledOperations]) -> SampledOperations | None:
    """Those of all parts; None without any."""
    rows = [part for part in parts if len(part.rank)]
    names = ("rank", "step", "code", "seconds")
    joined = {
        name: np.concatenate([getattr(each, name) for each in rows]) for name in names if rows
    }
    return SampledOperations(**joined) if joined else None


def read_operation_files(pages: Sequence[Page], notes: list[str]) -> SampledOperations | None:
    """Those beside some pages; ``notes`` takes sentences about files that are not read."""
    dtype, ranks, parts, num_rows = dtype_of(OPERATION), list[int](), list[NDArray[np.void]](), 0
    for page in pages:
        path = operations_path(page.path)
        try:
            num_rows += path.stat().st_size // OPERATION.size
            if num_rows > MAX_OPERATIONS:
                notes.append(f"{too_many_operations(num_rows)}.")
                break
            rows = np.frombuffer(read_operations(path), dtype)
        except (OSError, PageError) as error:
            notes.append(f"Left out: {error}.")
            continue
        ranks += [page.identity["rank"]] * len(rows)
        parts.append(rows)
    rows = np.concatenate([np.empty(0, dtype), *parts])
    columns = {name: rows[name] for name in OPERATION_COLUMNS[1:]}
    return join_operations([sum_operations({"rank": np.array(ranks, np.int64), **columns})])


def too_many_operations(count: int) -> str:
    """That there are so many operations that none beyond the limit are read."""
    return f"Of {plural(count, 'operation')} or more at most {MAX_OPERATIONS:,} are read"
