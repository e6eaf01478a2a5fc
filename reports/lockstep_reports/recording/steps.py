"""The one model of what a job recorded by step: matrices [ranks, steps], NaN where unknown."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_records.text.printable import printable
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Flags, Integers, Matrix, blocks_of_rows
from lockstep_reports.wording import plural

MAX_WORLD_SIZE = 1 << 20
"""Most ranks of a job; a larger claim of a page or a trace is refused before it costs memory."""
_UNKNOWN = np.empty(0)
MAX_CELLS = 1 << 25
"""Most cells [ranks, steps] that a reader makes: 256 MiB a matrix."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One rank of the job: its identity, and the last values on its page.

    Attributes:
        page_created_seconds: wall clock at which its page was created; 0 where unknown.
        phase: the phase that it entered last.
        progress_seconds: wall clock at which it entered that phase.
        last_step: last completed step; None when there is none.
        allocator_retries: times that the GPU's allocator freed its cache and tried again.
        exception: what ended it, with its place; None where no exception is recorded.
        last_output: last lines of its stderr; None where none are kept.
        is_running: whether its process holds the lock of its page; None without a lock.
        loader_workers: processes that fetch for it; 0 where there are none or unknown.
        batches_ahead: batches that these have in the making and ready at most.
        sync_rounds: times that it took over shared parameters; 0 where steps average gradients.
        independent_rounds: of them those in which it waited for no other rank.
        staleness_steps: mean over them of the updates that it lacked; None without any.
        unseen: what the rank does not see of its loop, with the line to add.
    """

    rank: int
    node: str = ""
    gpu_uuid: str = ""
    mesh: dict[str, int] = field(default_factory=dict)
    page_created_seconds: float = 0.0
    phase: str = "init"
    progress_seconds: float = 0.0
    last_step: int | None = None
    allocator_retries: int = 0
    exception: str | None = None
    last_output: str | None = None
    is_running: bool | None = None
    loader_workers: int = 0
    batches_ahead: int = 0
    sync_rounds: int = 0
    independent_rounds: int = 0
    staleness_steps: float | None = None
    unseen: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DurationHistogram:
    """How many steps took how long, for sources that know no single steps.

    Attributes:
        bounds: upper bounds in seconds [bounds], ascending, the last infinite.
        counts: cumulative: steps of all ranks that took no longer than a bound
            [bounds, columns]; NaN where unknown.
    """

    bounds: NDArray[np.float64]
    counts: Matrix

    def quantile(self, share: float) -> float | None:
        """A quantile over all columns in seconds; None above the last finite bound.

        Between two bounds it interpolates linearly, as Prometheus' histogram_quantile does.
        """
        # Prometheus extrapolates the increase of each bucket by itself, so counts need not ascend.
        cumulative = np.maximum.accumulate(np.nansum(self.counts, axis=1))
        target = share * cumulative[-1]
        bucket = int(np.searchsorted(cumulative, target))
        if not cumulative[-1] or not np.isfinite(self.bounds[bucket]):
            return None
        ends = slice(bucket, bucket + 2)
        return float(
            np.interp(target, np.append(0.0, cumulative)[ends], np.append(0.0, self.bounds)[ends])
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SampledOperations:
    """Operations of sampled steps, each the sum over a rank's of one name in a step [rows].

    Attributes:
        code: index into the names of operations.
        seconds: from the start, of a collective the rank's own arrival, to the end.
    """

    rank: Integers
    step: Integers
    code: Integers
    seconds: Matrix


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Steps:
    """Steps of one attempt, aligned over its ranks by step number.

    All matrices are [ranks, steps] with NaN where a value is unknown; those that may be None are so
    where the source has none. Times are seconds.

    Attributes:
        members: the ranks that left a readable page, by rank; row i of a matrix is members[i].
        numbers: step numbers as the job counts [steps], ascending.
        seconds: duration of each step.
        phases: time in each phase, by its name; zero where the rank did not enter it.
        start: wall clock at which the step began, by the rank's own clock, since the epoch.
        last_arrival: arrival at the step's last collective, in the same way.
        loss: training loss as the rank reports it.
        notes: sentences for the reader about what is missing.
        steps_per_column: number of the job's steps that a column is the mean of [steps].
        represented: number of steps that a column represents, itself included [steps], where a
            device timed only some.
        durations: histogram of the single steps behind the columns.
        tokens: of the rank in the step.
        sequence_squares: sum of the squared lengths of the step's sequences, in tokens squared.
        host_bound: time of own work but for data in which the device waited for the host.
        by_device: 1 where the times of a row are the device's, 0 where the host's.
        not_finite: 1 where loss or gradient norm was NaN or infinite, else 0.
        hung: 1 where a phase of the step took longer than a hang does, else 0.
        run_queue: time outside collectives that the rank's loop was ready and had no core.
        queued_ratio: the same, in collectives too, as a share of all recorded time; None where only
            that outside is known.
        blocked: time of own work in which it neither had a core nor was ready to run, nor was
            stopped.
        stopped: time in which its process was stopped, in any phase.
        collection: time in which Python collected garbage.
        has_phases: whether own work was told apart by phases; all of it is in other where not.
        is_independent: whether ranks wait for no other, as workers of a parameter server.
        round_steps: steps of a rank that a column sums, where all ranks meet in rounds; else 0.
        operations: of sampled steps; None where the source has none.
        ranks: global ranks in the order of the rows.
    """

    job_id: str
    attempt: int
    world_size: int
    members: tuple[Member, ...]
    numbers: Integers
    seconds: Matrix
    phases: dict[str, Matrix]
    start: Matrix = field(default_factory=lambda: _UNKNOWN)
    last_arrival: Matrix = field(default_factory=lambda: _UNKNOWN)
    loss: Matrix = field(default_factory=lambda: _UNKNOWN)
    cluster: str = ""
    project: str = ""
    notes: tuple[str, ...] = ()
    steps_per_column: Matrix | None = None
    represented: Matrix | None = None
    durations: DurationHistogram | None = None
    tokens: Matrix | None = None
    sequence_squares: Matrix | None = None
    host_bound: Matrix | None = None
    by_device: Matrix | None = None
    not_finite: Matrix | None = None
    hung: Matrix | None = None
    run_queue: Matrix | None = None
    blocked: Matrix | None = None
    stopped: Matrix | None = None
    collection: Matrix | None = None
    has_phases: bool = True
    is_independent: bool = False
    round_steps: int = 0
    queued_ratio: float | None = None
    operations: SampledOperations | None = None
    ranks: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ranks", tuple(member.rank for member in self.members))
        for name in ("start", "last_arrival", "loss"):
            if getattr(self, name) is _UNKNOWN:
                object.__setattr__(self, name, np.full(self.seconds.shape, np.nan))
        if not 0 < self.world_size <= MAX_WORLD_SIZE:
            raise ValueError(
                f"world size {self.world_size:,} of {printable(self.job_id)} is not from 1 to"
                f" {MAX_WORLD_SIZE:,}; record the job again with the right one"
            )

    def sum_over_columns(self, values: Matrix) -> Matrix:
        """Values of single steps [..., steps] as sums over the steps behind each column."""
        return values if self.weights is None else values * self.weights

    @property
    def weights(self) -> Matrix | None:
        """Number of steps behind each column [steps]; None where each is one."""
        return self.represented if self.steps_per_column is None else self.steps_per_column

    @property
    def is_running(self) -> bool:
        """Whether a rank holds the lock of its page."""
        return any(member.is_running for member in self.members)

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks of the world that left no readable page."""
        return tuple(sorted(set(range(self.world_size)) - set(self.ranks)))

    def measure_span(self, ahead: Matrix | float = 0.0) -> tuple[float | None, float | None]:
        """Wall clock at which the first step began and the last ended; None where unknown.

        By clocks that are so many seconds ahead, as one number or by rank, and step if need be.
        """
        first, last = [], []
        shift = np.broadcast_to(ahead, self.seconds.shape)
        for rows in blocks_of_rows(self.seconds):
            start = self.start[rows] - shift[rows]
            first.append(nan_stats.lowest(start))
            last.append(nan_stats.highest(start + self.seconds[rows]))
        spans = np.fmin.reduce(first, initial=np.nan), np.fmax.reduce(last, initial=np.nan)
        return nan_stats.number(spans[0]), nan_stats.number(spans[1])

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes in the order of their first rank."""
        return tuple(dict.fromkeys(member.node for member in self.members))

    @property
    def rows_by_node(self) -> dict[str, list[int]]:
        """Rows of the ranks of each node, in the order of ``nodes``."""
        rows: dict[str, list[int]] = {}
        for row, member in enumerate(self.members):
            rows.setdefault(member.node, []).append(row)
        return rows

    @property
    def sync(self) -> Matrix:
        """Waits for other ranks: seconds, [ranks, steps]; NaN where the rank had none."""
        return self.sync_at(slice(None), slice(None))

    def sync_at(self, rows: slice | list[int], columns: slice) -> Matrix:
        """The same of some ranks in some steps."""
        sync = self.phases["sync"][rows, columns]
        took_part = ~np.isnan(self.last_arrival[rows, columns]) | (sync > 0)
        return np.where(took_part & (not self.is_independent), sync, np.nan)

    @property
    def took_part(self) -> Flags:
        """Where a rank's waits for others are known [ranks, steps]."""
        blocks = blocks_of_rows(self.seconds)
        parts = [~np.isnan(self.sync_at(rows, slice(None))) for rows in blocks]
        return np.concatenate([np.empty((0, len(self.numbers)), dtype=bool), *parts])


def timed_steps(
    name: str,
    ranks: list[int],
    numbers: Integers,
    seconds: Matrix,
    *,
    sync: Matrix | None = None,
    world_size: int | None = None,
    notes: tuple[str, ...] = (),
) -> Steps:
    """Steps of which only durations, and perhaps exposed synchronisation, are known.

    Both are seconds, [ranks, steps], NaN where unknown; all other time is own work. The
    world is as large as the highest rank says where nothing else does.
    """
    phases = {phase: np.where(np.isnan(seconds), np.nan, 0.0) for phase in STEP_PHASES}
    if sync is not None:
        phases |= {"sync": sync, "other": np.maximum(seconds - sync, 0.0)}
    return Steps(
        job_id=name,
        attempt=0,
        world_size=world_size or max(ranks, default=0) + 1,
        members=tuple(Member(rank=rank) for rank in ranks),
        numbers=numbers,
        seconds=seconds,
        phases=phases,
        notes=notes,
        has_phases=sync is None,
    )


_SUMS = (
    "seconds",
    "tokens",
    "sequence_squares",
    "host_bound",
    "run_queue",
    "blocked",
    "stopped",
    "collection",
)
_HIGHEST = ("last_arrival", "not_finite", "hung", "by_device")


def as_shared(steps: Steps) -> Steps:
    """The steps with a column a round, or marked as independent; as they are in all other jobs."""
    if any(member.independent_rounds for member in steps.members):
        return replace(steps, is_independent=True)
    num_in_sync = np.count_nonzero(steps.took_part, axis=0)
    ends = np.flatnonzero(num_in_sync > 1)
    has_rounds = any(member.sync_rounds for member in steps.members)
    if not has_rounds or len(ends) in {0, len(steps.numbers)}:
        return steps
    return _sum_rounds(steps, ends)


def _sum_rounds(steps: Steps, ends: Integers) -> Steps:
    """Sums over the steps of each round; steps after the last round are left out."""
    starts = np.concatenate([[0], ends[:-1] + 1])
    covered = slice(0, int(ends[-1]) + 1)

    def reduced(values: Matrix | None, reduce: np.ufunc) -> Any:
        return None if values is None else reduce.reduceat(values[:, covered], starts, axis=1)

    changed: dict[str, Any] = {name: reduced(getattr(steps, name), np.add) for name in _SUMS}
    # Of a round only its last step has arrivals; fmax passes over what is unknown.
    changed |= {name: reduced(getattr(steps, name), np.fmax) for name in _HIGHEST}
    round_steps = int(np.median(ends - starts + 1))
    note = (
        f"All ranks meet in rounds, every {plural(round_steps, 'step')}: a step of this report is "
        "one round, under the number of its last step."
    )
    return replace(
        steps,
        **changed,
        numbers=steps.numbers[ends],
        phases={name: reduced(values, np.add) for name, values in steps.phases.items()},
        start=steps.start[:, starts],
        loss=steps.loss[:, ends],
        notes=(*steps.notes, note),
        round_steps=round_steps,
    )
