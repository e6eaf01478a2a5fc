"""The one model of what a job recorded: ranks x steps, NaN where nothing is known."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lockstep_reports.arrays import Flags, Matrix


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One rank of the job: who it is, and the last that its page tells.

    Attributes:
        born_seconds: wall clock at which its page was made.
        phase: phase of its last mark.
        progress_seconds: wall clock of that mark.
        last_step: last completed step, None when there is none.
        collection_seconds: seconds in Python's garbage collector, all in all.
        allocator_retries: times that the GPU's allocator gave all back and tried again.
    """

    rank: int
    local_rank: int = 0
    node: str = ""
    pid: int = 0
    gpu_uuid: str = ""
    mesh: dict[str, int] = field(default_factory=dict)
    born_seconds: float = 0.0
    phase: str = "init"
    progress_seconds: float = 0.0
    last_step: int | None = None
    collection_seconds: float | None = None
    allocator_retries: int = 0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Durations:
    """How many steps took how long, where single steps are not known.

    Attributes:
        bounds: upper bounds in seconds [bounds], rising, the last infinite.
        counts: steps of all ranks that took no longer [bounds x columns]; NaN where not known.
    """

    bounds: NDArray[np.float64]
    counts: Matrix

    def quantile(self, share: float) -> float | None:
        """A quantile over all columns, as even between two bounds; None above the last finite."""
        upto = np.maximum.accumulate(np.nansum(self.counts, axis=1))
        wanted = share * upto[-1]
        place = int(np.searchsorted(upto, wanted))
        if not upto[-1] or not np.isfinite(self.bounds[place]):
            return None
        low, below = (self.bounds[place - 1], upto[place - 1]) if place else (0.0, 0.0)
        within = (wanted - below) / (upto[place] - below)
        return float(low + within * (self.bounds[place] - low))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Steps:
    """Step rows of one attempt, aligned over its ranks by step number.

    Attributes:
        members: the ranks that left a readable page, by rank; row i of a matrix is members[i].
        numbers: the steps [steps], ascending.
        seconds: duration of each step [ranks x steps].
        phases: seconds in each phase [ranks x steps] by phase name; zero where not entered.
        start: wall clock at which the step began, by the rank's own clock pair, in seconds.
        first_arrival: the same for the arrival at the step's first collective.
        last_arrival: the same for the arrival at the step's last collective.
        loss: training loss told by the rank.
        notes: sentences for the reader about what is missing.
        stands_for: how many steps of the job a column stands for, its values being their means
            [steps]; None where each column is one step.
        durations: how long the single steps behind the columns took, where counts of them are kept.
        tokens: tokens of the rank in the step; None where the source does not tell.
        sequence_squares: sum of the squared lengths of its sequences, in the same way.
    """

    job_id: str
    attempt: int
    world_size: int
    members: tuple[Member, ...]
    numbers: NDArray[np.int64]
    seconds: Matrix
    phases: dict[str, Matrix]
    start: Matrix
    first_arrival: Matrix
    last_arrival: Matrix
    loss: Matrix
    cluster: str = ""
    project: str = ""
    notes: tuple[str, ...] = ()
    stands_for: Matrix | None = None
    durations: Durations | None = None
    tokens: Matrix | None = None
    sequence_squares: Matrix | None = None

    def over_all(self, values: Matrix) -> Matrix:
        """Values of single steps [... x steps] as sums over the steps that each stands for."""
        return values if self.stands_for is None else values * self.stands_for

    @property
    def ranks(self) -> tuple[int, ...]:
        """Global ranks in the order of the rows."""
        return tuple(member.rank for member in self.members)

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks of the world that left no readable page."""
        return tuple(sorted(set(range(self.world_size)) - set(self.ranks)))

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes in the order of their first rank."""
        return tuple(dict.fromkeys(member.node for member in self.members))

    def on_node(self, node: str) -> Flags:
        """Which rows are ranks of a node [ranks]."""
        return np.array([member.node == node for member in self.members])

    @property
    def sync(self) -> Matrix:
        """Exposed synchronisation [ranks x steps]; NaN in a step without any for the rank."""
        return self.sync_of(slice(None))

    def sync_of(self, places: slice) -> Matrix:
        """The same for some of the steps."""
        seconds = self.phases["sync"][:, places]
        took_part = ~np.isnan(self.last_arrival[:, places]) | (seconds > 0)
        return np.where(took_part, seconds, np.nan)
