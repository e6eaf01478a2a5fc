"""Faults of a simulated job: the same words as those of the trainer, applied to computed times."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep_trainer.faults.fault import Fault
from lockstep_trainer.faults.kind import Kind, Value
from lockstep_trainer.faults.parse import FaultReader, Words, read_each

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
    """Ranks that take longer in one phase, for some steps.

    Attributes:
        phase: of ``STEP_PHASES``.
        factor: the phase takes so many times as long,
        delay_seconds: and so much longer.
    """

    ranks: tuple[int, ...]
    phase: str
    factor: float
    delay_seconds: float
    schedule: Fault

    def is_due(self, step: int) -> bool:
        """Whether a step has the fault; a simulated job has one attempt, number 0."""
        return self.schedule.is_due(step) and self.schedule.attempt in {None, 0}


def parse_faults(
    texts: Sequence[str], *, nodes: Sequence[str], steps: int, seed: int
) -> tuple[SimulatedFault, ...]:
    """The faults in ``--fault`` flags; the seed chooses ranks and steps that are left to chance.

    Raises:
        ValueError: one of them is not valid; one sentence names it and the remedy.
    """
    return read_each(texts, seed, lambda words, chance: _read(words, nodes, steps, chance))


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
