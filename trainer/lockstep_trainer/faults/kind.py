"""What a kind of fault is: its name, the values it takes, where it cannot be, and what it does."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from torch import nn

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.data.batches import Batch
from lockstep_trainer.faults.fault import Fault
from lockstep_trainer.mesh import Layout
from lockstep_trainer.model import GPT


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """A number that a kind takes: its name with the unit, its range, and what is taken else.

    Attributes:
        default: None where the user has to choose.
        whole: whether it counts something.
    """

    name: str
    low: float
    high: float
    default: float | None = None
    whole: bool = False

    @property
    def range(self) -> str:
        """As people write it, such as ``0.1..3600``."""
        return f"{self.low:.15g}..{self.high:.15g}"


@dataclass(kw_only=True, slots=True)
class Target:
    """The job as a fault finds it on one rank, in one step.

    Attributes:
        parts: the model, or the stages of it that this rank runs.
        batch: step, inputs and targets that the loop is about to get; a fault may change it.
    """

    parts: Sequence[GPT]
    optimizer: torch.optim.Optimizer
    checkpoint_dir: Path | None
    batch: Batch
    sleep: Callable[[float], None]

    @property
    def middle_block(self) -> nn.Module:
        """In whose backward half of the gradients are not there yet."""
        blocks = list(self.parts[0].blocks.values())
        return blocks[len(blocks) // 2]

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints, for kinds that cannot be without."""
        assert self.checkpoint_dir is not None
        return self.checkpoint_dir


InStep: TypeAlias = Callable[[Fault, Target], AbstractContextManager[None]]
Told: TypeAlias = Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """One kind of fault.

    Attributes:
        in_step: entered before the loop gets the batch of a step and left after all of that step,
            its checkpoint included; None for a fault of the start.
        at_start: the environment variables as the rank is to find them; None for one in a step.
        values: what it takes besides rank, steps and attempt.
        refuses: why it cannot be in a run, or None.
    """

    name: str
    in_step: InStep | None = None
    at_start: Callable[[Fault, Told], Told] | None = None
    values: tuple[Value, ...] = ()
    refuses: Callable[[Fault, TrainConfig, Layout], str | None] = lambda *_: None


def needs_checkpoints(_fault: Fault, config: TrainConfig, _layout: Layout) -> str | None:
    """Refuses a run that writes none."""
    return None if config.checkpoint_dir else "it needs --checkpoint-dir, on whose files it acts"


Step: TypeAlias = Iterator[None]
