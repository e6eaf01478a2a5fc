"""A simulated job as one value: its ranks, its step time and noise, and its faults.

Defaults are from public recordings of real jobs:

* Fractions of a step: the pipeline-parallel job of ByteDance's straggler study (OSDI 2025). An
  ordinary rank computes 0.269 s forward and 0.574 s backward a step, takes 0.080 s to gather its
  parameters and scatter its gradients, and 0.042 s for its optimizer (medians). Loading and host
  gaps are a guess.
* Unevenness: the compute times of ranks in its ordinary stages differ by 0.4 %.
* Jitter: standard deviation of the logarithm of a worker's iteration time around its own median.
  It is 1.6 % in Alibaba's healthy job 2, and 2.4 to 2.8 % for the steady workers of its job 3.
* Tail: MLPerf runs have one spike each: 1.36 times the median in one run; 2.09 times in a run of
  2,432 ranks and 273 steps, which gives 1.5e-6 per rank and step.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

import click

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_cli.options import DurationRange, FiniteRange
from lockstep_records.page.layout import MAX_ROWS
from lockstep_trainer.config import NOT_NEGATIVE, POSITIVE, flag
from lockstep_trainer.faults.kind import Fault, Kind, Value
from lockstep_trainer.faults.parse import FaultReader, Words, read_each
from lockstep_trainer.layout.world import AXES, Layout

# The phase that each kind makes longer; the names are those of the trainer's kinds.
_PHASE_BY_KIND = {
    "slow-loader": "data",
    "slow-forward": "forward",
    "slow-backward": "backward",
    "slow-optimizer": "optimizer",
    "slow-network": "sync",
}
_VALUES = (
    Value(name="delay", low=0, high=3600, default=0, sort="duration"),
    Value(name="factor", low=0, high=1e6, default=1),
)
_KINDS = {name: Kind(name=name, values=_VALUES) for name in _PHASE_BY_KIND}


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedFault:
    """Ranks whose phase takes ``factor`` times as long, and a delay longer, for some steps."""

    ranks: tuple[int, ...]
    phase: str
    factor: float
    delay_seconds: float
    schedule: Fault

    def is_due(self, step: int) -> bool:
        """Whether a step has the fault; a simulated job has one attempt, number 0."""
        return self.schedule.is_due(step) and self.schedule.attempt in {None, 0}


def _read(words: Words, nodes: Sequence[str], steps: int, chance: random.Random) -> SimulatedFault:
    node = words.get("node")
    if node is not None:
        words = _replace_node(words, nodes)
    reader = FaultReader(words, kinds=_KINDS, steps=steps, world_size=len(nodes), chance=chance)
    schedule = reader.read()
    if ("delay" in words) == ("factor" in words):
        raise ValueError(f"{schedule.kind} needs delay=100ms or factor=2, one of them")
    return SimulatedFault(
        ranks=tuple(
            rank
            for rank, name in enumerate(nodes)
            if node in {None, name} and schedule.rank in {None, rank}
        ),
        phase=_PHASE_BY_KIND[schedule.kind],
        factor=schedule.values["factor"],
        delay_seconds=schedule.values["delay"],
        schedule=schedule,
    )


def _replace_node(words: Words, nodes: Sequence[str]) -> Words:
    """The words for all ranks, of which the caller takes those on the node."""
    node = words["node"]
    if "rank" in words:
        raise ValueError("rank and node are both given; leave one out")
    if node not in nodes:
        raise ValueError(f"{node!r} is not a node; they run from {nodes[0]} to {nodes[-1]}")
    return {**{name: text for name, text in words.items() if name != "node"}, "rank": "all"}


# Fraction of a step by phase; sync is the exposed transfer when all ranks arrive at once.
SHARES = {
    "data": 0.01,
    "forward": 0.275,
    "backward": 0.58,
    "sync": 0.08,
    "optimizer": 0.045,
    "other": 0.01,
}
assert set(SHARES) < set(STEP_PHASES)
SPEEDS = ("wall-clock", "fast")
_MAX_RANKS = 100_000
_DEGREE = re.compile(r"([a-z]+)=([1-9][0-9]{0,5})")
_DAY_SECONDS = 86_400


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulation:
    """One simulated job, each field a flag, durations in seconds; a ValueError names the flag."""

    ranks: int = flag(64, click.IntRange(2, _MAX_RANKS), "Ranks.")
    ranks_per_node: int = flag(8, POSITIVE, "Ranks per node; nodes are named node-0001 and so on.")
    layout: str = flag(
        "",
        click.STRING,
        "Mesh degrees, such as dp=128,tp=8; dp takes what the others leave; default: dp alone.",
    )
    steps: int = flag(300, POSITIVE, "Steps of the job.")
    step_time: float = flag(
        1.0, DurationRange(0.001, _DAY_SECONDS), "Duration of a step without noise and faults."
    )
    jitter: float = flag(
        0.016,
        FiniteRange(0, 2),
        "Noise of a rank's work from step to step (lognormal sigma); 0 = none.",
    )
    unevenness: float = flag(
        0.004,
        FiniteRange(0, 2),
        "Constant difference of work between ranks (lognormal sigma); 0 = none.",
    )
    tail: float = flag(
        1.5e-6,
        FiniteRange(0, 1),
        "Probability that a rank's step is a spike of at least 1.36 times the usual work; "
        "0 = never.",
    )
    tokens: int = flag(4096, NOT_NEGATIVE, "Tokens per rank and step.")
    samples: int = flag(1, NOT_NEGATIVE, "Samples per rank and step.")
    rows: int = flag(
        256, click.IntRange(1, MAX_ROWS), "Newest steps that a page holds; each takes 256 bytes."
    )
    speed: str = flag(
        "wall-clock",
        click.Choice(SPEEDS),
        "wall-clock: a step takes its duration. fast: steps are written without waiting, and "
        "their times run ahead of the clock.",
    )
    seed: int = flag(
        0, click.IntRange(0, 2**32 - 1), "Seed of noise, and of what a fault leaves to chance."
    )
    fault: tuple[str, ...] = flag(
        (),
        click.STRING,
        "Fault to simulate, as slow-PHASE:rank=R,step=S,delay=100ms; node=NAME may replace "
        "rank, and factor=2 delay; repeatable. PHASE is loader, forward, backward, optimizer "
        "or network.",
    )

    def __post_init__(self) -> None:
        _ = self.mesh, self.faults

    @property
    def mesh(self) -> Layout:
        """The layout of the ranks; ValueError where --layout does not fit --ranks."""
        degrees: dict[str, int | None] = {}
        for part in self.layout.split(",") if self.layout else ():
            degree = _DEGREE.fullmatch(part)
            if degree is None or degree[1] not in AXES or degree[1] in degrees:
                axes = ", ".join(sorted(AXES))
                raise ValueError(
                    f"--layout {self.layout!r} must be like dp=128,tp=8, each axis once, of {axes}"
                )
            degrees[degree[1]] = int(degree[2])
        try:
            return Layout.fill(self.ranks, "dp", degrees)
        except ValueError as error:
            raise ValueError(
                f"--layout {self.layout!r} on --ranks {self.ranks}: {error}"
            ) from error

    @property
    def nodes(self) -> list[str]:
        """Node name of each rank, by rank."""
        return [f"node-{rank // self.ranks_per_node + 1:04d}" for rank in range(self.ranks)]

    @property
    def faults(self) -> tuple[SimulatedFault, ...]:
        """The faults of the job, ranks and steps left to chance by the seed; or ValueError."""
        nodes, steps = self.nodes, self.steps
        return read_each(
            self.fault, self.seed, lambda words, chance: _read(words, nodes, steps, chance)
        )
