"""A simulated job as one value: how many ranks, how long a step, how uneven, and who is slow.

Defaults are from public recordings of real jobs:

* Shares of a step: the pipeline-parallel job of ByteDance's straggler study (OSDI 2025). An
  ordinary rank computes 0.269 s forward and 0.574 s backward a step, takes 0.080 s to gather its
  parameters and scatter its gradients and 0.042 s for its optimizer (medians). Loading and host
  gaps are our guess.
* Unevenness: the ranks of its ordinary stages differ by 0.4 % in what they compute.
* Jitter: around its own median, the iteration time of a worker of Alibaba's healthy job 2 spreads
  by 1.6 % (logarithm, standard deviation); that of the steady workers of job 3 by 2.4 to 2.8 %.
* Tail: MLPerf runs have one lone spike each: at 1.36 times the median in one, and in one of 2,432
  ranks and 273 steps at 2.09 times, which makes 1.5e-6 a rank and step.
"""

import math
import re
from dataclasses import dataclass, field, fields

import click

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_records.options import FiniteRange
from lockstep_records.page.layout import MAX_ROWS
from lockstep_trainer.flags import NOT_NEGATIVE, POSITIVE, flag, flag_name
from lockstep_trainer.mesh import Layout

# Share of a step by phase; sync is what a rank is exposed to when all arrive together.
SHARES = {
    "data": 0.01,
    "forward": 0.275,
    "backward": 0.58,
    "sync": 0.08,
    "optimizer": 0.045,
    "other": 0.01,
}
assert set(SHARES) < set(STEP_PHASES)
# The names that the trainer's own faults go by, and the phase that each of them makes longer.
SLOW_PHASES = {
    "loader": "data",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "network": "sync",
}
SPEEDS = ("wall-clock", "fast")
_MOST_RANKS = 100_000
_DEGREE = re.compile(r"([a-z]+)=([1-9][0-9]{0,5})")
_POSITIVE_NUMBER = FiniteRange(0, min_open=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulation:
    """One simulated job. Every field is a flag of the same name.

    Raises:
        ValueError: two fields do not fit together; the text names the flag to change.
    """

    ranks: int = field(default=64, metadata=flag(click.IntRange(2, _MOST_RANKS), "Ranks."))
    ranks_per_node: int = field(
        default=8, metadata=flag(POSITIVE, "Ranks on a node; nodes are node-0001 and so on.")
    )
    layout: str = field(
        default="",
        metadata=flag(
            click.STRING,
            "Degrees of the mesh, such as dp=128,tp=8; dp takes what the others leave.",
        ),
    )
    steps: int = field(default=300, metadata=flag(POSITIVE, "Steps of the job."))
    step_seconds: float = field(
        default=1.0, metadata=flag(_POSITIVE_NUMBER, "Seconds of a step of even ranks.")
    )
    jitter: float = field(
        default=0.016,
        metadata=flag(
            FiniteRange(0, 2),
            "Spread of a rank's work from step to step (lognormal sigma); 0 = none.",
        ),
    )
    unevenness: float = field(
        default=0.004,
        metadata=flag(
            FiniteRange(0, 2),
            "Lasting spread of work between ranks (lognormal sigma); 0 = none.",
        ),
    )
    tail: float = field(
        default=1.5e-6,
        metadata=flag(
            FiniteRange(0, 1),
            "Probability that a rank's step is a spike, of 1.36 times the usual work or more; "
            "0 = never.",
        ),
    )
    tokens: int = field(default=4096, metadata=flag(NOT_NEGATIVE, "Tokens of a rank in a step."))
    samples: int = field(default=1, metadata=flag(NOT_NEGATIVE, "Samples of a rank in a step."))
    rows: int = field(
        default=256,
        metadata=flag(
            click.IntRange(1, MAX_ROWS), "Newest steps that a page keeps; each takes 128 bytes."
        ),
    )
    speed: str = field(
        default="wall-clock",
        metadata=flag(
            click.Choice(SPEEDS),
            "Whether a step takes its time, or all are written as fast as can be; their times then "
            "run ahead of the clock.",
        ),
    )
    seed: int = field(
        default=0, metadata=flag(click.IntRange(0, 2**32 - 1), "Seed of all that is random.")
    )
    slow_rank: int | None = field(
        default=None, metadata=flag(NOT_NEGATIVE, "Rank that is slow; left out = none.")
    )
    slow_node: str | None = field(
        default=None,
        metadata=flag(click.STRING, "Node whose ranks are all slow, such as node-0003."),
    )
    slow_phase: str = field(
        default="backward",
        metadata=flag(
            click.Choice(tuple(SLOW_PHASES)),
            "What takes longer; a slow network delays the collective of all ranks.",
        ),
    )
    slow_factor: float | None = field(
        default=None,
        metadata=flag(_POSITIVE_NUMBER, "How many times as long it takes; or give --slow-ms."),
    )
    slow_ms: float | None = field(
        default=None,
        metadata=flag(FiniteRange(0, 3_600_000), "Milliseconds that it takes longer."),
    )
    slow_from: int = field(default=1, metadata=flag(POSITIVE, "First slow step."))
    slow_until: int | None = field(
        default=None,
        metadata=flag(POSITIVE, "First step that is fast again; left out = slow to the end."),
    )

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{flag_name(one)} {value} must be a finite number")
        _ = self.mesh
        self._check_fault()

    def _check_fault(self) -> None:
        if self.slow_rank is not None and self.slow_node is not None:
            raise ValueError("--slow-rank and --slow-node are both given; leave one out")
        if self.slow_rank is not None and self.slow_rank >= self.ranks:
            raise ValueError(
                f"--slow-rank {self.slow_rank} is outside the world of {self.ranks} ranks; "
                f"they run from 0 to {self.ranks - 1}"
            )
        if self.slow_node is not None and self.slow_node not in set(self.nodes):
            raise ValueError(
                f"--slow-node {self.slow_node!r} is no node; "
                f"they run from {self.nodes[0]} to {self.nodes[-1]}"
            )
        if self.is_faulty and (self.slow_factor is None) == (self.slow_ms is None):
            raise ValueError("a slow rank or node needs --slow-factor or --slow-ms, one of them")
        if self.slow_until is not None and self.slow_until <= self.slow_from:
            raise ValueError(
                f"--slow-until {self.slow_until} must be above --slow-from {self.slow_from}"
            )

    @property
    def mesh(self) -> Layout:
        """The layout of the ranks."""
        degrees: dict[str, int | None] = {}
        for part in self.layout.split(",") if self.layout else ():
            told = _DEGREE.fullmatch(part)
            if told is None or told[1] not in Layout(world_size=1).degrees or told[1] in degrees:
                axes = ", ".join(sorted(Layout(world_size=1).degrees))
                raise ValueError(
                    f"--layout {self.layout!r} must be like dp=128,tp=8, each axis once, of {axes}"
                )
            degrees[told[1]] = int(told[2])
        try:
            return Layout.fill(self.ranks, "dp", degrees)
        except ValueError as error:
            raise ValueError(
                f"--layout {self.layout!r} on --ranks {self.ranks}: {error}"
            ) from error

    @property
    def nodes(self) -> list[str]:
        """Name of the node of each rank."""
        return [f"node-{rank // self.ranks_per_node + 1:04d}" for rank in range(self.ranks)]

    @property
    def is_faulty(self) -> bool:
        """Whether anybody is slow at any time."""
        return self.slow_rank is not None or self.slow_node is not None

    @property
    def slow_ranks(self) -> list[int]:
        """The ranks that are slow while the fault lasts."""
        return [
            rank
            for rank, node in enumerate(self.nodes)
            if rank == self.slow_rank or node == self.slow_node
        ]

    def is_slow_at(self, step: int) -> bool:
        """Whether the fault is there in a step; steps count from 1."""
        over = self.slow_until is not None and step >= self.slow_until
        return self.is_faulty and step >= self.slow_from and not over
