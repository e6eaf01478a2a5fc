"""A kind of fault: its name, the values it takes, the runs that refuse it, and its effect."""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from torch import nn

from lockstep_records.text.durations import format_duration, parse_duration
from lockstep_trainer.config import TrainConfig
from lockstep_trainer.data.batches import Batch
from lockstep_trainer.layout.world import Layout
from lockstep_trainer.model.gpt import GPT


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One fault to inject.

    Attributes:
        step: first step with the fault, from 1; 0 for a fault at startup.
        until: first step without the fault; None for a fault that lasts to the end.
        attempt: start of the job that has the fault, so that a restart does not meet it again; None
            for every start.
    """

    kind: str
    rank: int | None = None
    step: int = 1
    until: int | None = None
    attempt: int | None = None
    values: Mapping[str, float] = field(default_factory=dict)

    def is_due(self, step: int) -> bool:
        """Whether a step has the fault."""
        return self.step <= step and (self.until is None or step < self.until)

    def concerns(self, rank: int, attempt: int) -> bool:
        """Whether a rank has the fault in one start of the job."""
        return self.rank in {None, rank} and self.attempt in {None, attempt}

    def announce(self, *, rank: int, step: int) -> None:
        """Writes one line to stderr, before the fault takes effect."""
        sys.stderr.write(f"fault: {self.kind} rank={rank} step={step}\n")
        # A kill or a stop comes right after this line, and would lose what is buffered.
        sys.stderr.flush()


Sort: TypeAlias = Literal["number", "whole number", "duration"]
_READERS: Mapping[Sort, Callable[[str], float]] = {
    "number": float,
    "whole number": int,
    "duration": parse_duration,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """A number that a kind takes, a duration in seconds; without a default the user chooses."""

    name: str
    low: float
    high: float
    default: float | None = None
    sort: Sort = "number"

    @property
    def range(self) -> str:
        """The range as people write it, such as ``0.1..3600`` or ``0s..1h``."""
        if self.sort == "duration":
            return f"{format_duration(self.low)}..{format_duration(self.high)}"
        return f"{self.low:.15g}..{self.high:.15g}"

    def read(self, text: str) -> float:
        """The number in a text, seconds for a duration; ValueError where it is out of range."""
        try:
            number = float(_READERS[self.sort](text))
        except ValueError:
            number = math.nan
        # A comparison with nan is false, so that "nan" and what is not a number end here too.
        if not self.low <= number <= self.high:
            raise ValueError(f"{self.name} {text} must be a {self.sort} in {self.range}")
        return number


@dataclass(kw_only=True, slots=True)
class Target:
    """The job that a fault acts on: one rank, in one step.

    Attributes:
        parts: the model, or the pipeline stages of this rank.
        batch: step, inputs and targets that the loop gets next; a fault may replace them.
    """

    parts: Sequence[GPT]
    optimizer: torch.optim.Optimizer
    checkpoint_dir: Path | None
    batch: Batch
    sleep: Callable[[float], None]

    @property
    def middle_block(self) -> nn.Module:
        """The block halfway through the model: its backward runs when half of the gradients exist.

        A fault there hits a rank while DDP or FSDP already reduces the first buckets.
        """
        blocks = list(self.parts[0].blocks.values())
        return blocks[len(blocks) // 2]

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints, for kinds with ``needs_checkpoints``."""
        assert self.checkpoint_dir is not None
        return self.checkpoint_dir


InStep: TypeAlias = Callable[[Fault, Target], AbstractContextManager[None]]
Environment: TypeAlias = Mapping[str, str]
Step: TypeAlias = Iterator[None]


def act_before_step(act: Callable[[Fault, Target], object]) -> InStep:
    """What a kind does in a step that acts before it, and has nothing to undo after it."""

    @contextmanager
    def enter_step(fault: Fault, target: Target) -> Step:
        act(fault, target)
        yield

    return enter_step


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """One kind of fault.

    Attributes:
        in_step: context entered before the loop gets the batch of a step, and left after all of
            that step, its checkpoint included; None for a fault at startup.
        at_start: gives the environment variables that the rank reads; None for a fault in a step.
        values: what it takes besides rank, steps and attempt.
    """

    name: str
    in_step: InStep | None = None
    at_start: Callable[[Fault, Environment], Environment] | None = None
    values: tuple[Value, ...] = ()
    refuses: Callable[[Fault, TrainConfig, Layout], str | None] = lambda *_: None


def needs_checkpoints(_fault: Fault, config: TrainConfig, _layout: Layout) -> str | None:
    """Refuses a run that writes no checkpoints."""
    return None if config.checkpoint_dir else "it needs --checkpoint-dir, on whose files it acts"
