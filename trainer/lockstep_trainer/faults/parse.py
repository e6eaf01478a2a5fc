"""Reads faults from ``--fault``, and draws by the seed what is left to chance.

A fault is ``KIND:rank=R,step=S,...``; ``rank`` and ``step`` may be ``any``, and ``step`` a range
such as ``10..20``.
"""

import os
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TypeAlias, TypeVar

import torch

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.data.batches import Batch
from lockstep_trainer.faults.kind import Fault, Kind, Target, Value
from lockstep_trainer.faults.kinds import KINDS
from lockstep_trainer.layout.world import Layout, World
from lockstep_trainer.model.gpt import GPT

T = TypeVar("T")
Words: TypeAlias = Mapping[str, str]

_RANGE = re.compile(r"^(\d+)\.\.(\d+)$")


def parse_all(config: TrainConfig, world_size: int) -> tuple[Fault, ...]:
    """All faults of a run in the order of the flags, the same for a seed; or ValueError."""

    def read(words: Words, chance: random.Random) -> Fault:
        reader = FaultReader(
            words, kinds=KINDS, steps=config.steps, world_size=world_size, chance=chance
        )
        return reader.read()

    return read_each(config.fault, config.fault_seed, read)


def read_each(
    texts: Iterable[str], seed: int, read: Callable[[Words, random.Random], T]
) -> tuple[T, ...]:
    """What is read of every fault, by its words and by chance; raises as ``parse_all``."""
    faults = []
    for number, text in enumerate(texts):
        # One generator per fault: a fault added after it does not change what it draws.
        chance = random.Random(f"{seed}/{number}")
        try:
            faults.append(read(_words(text), chance))
        except ValueError as error:
            raise ValueError(f"--fault {text!r}: {error}") from error
    return tuple(faults)


def _words(text: str) -> Words:
    """The words of a fault, its kind among them."""
    kind, _, rest = text.partition(":")
    words = {"kind": kind.strip()}
    for pair in rest.split(",") if rest else ():
        name, _, value = map(str.strip, pair.partition("="))
        if name in words:
            raise ValueError(f"it has {name}={value} and {name}={words[name]}; give one")
        words[name] = value
    return words


class FaultReader:
    """Reads one fault from its words.

    Args:
        words: text by name, ``kind`` included.
        chance: draws rank and step; always both, so that fixing one does not change the other.
    """

    def __init__(
        self,
        words: Words,
        *,
        kinds: Mapping[str, Kind],
        steps: int,
        world_size: int,
        chance: random.Random,
    ) -> None:
        self._words, self._kinds = words, kinds
        self._steps, self._world_size = steps, world_size
        self._any_rank, self._any_step = chance.randrange(world_size), chance.random()

    def read(self) -> Fault:
        """The fault; ValueError where a word is missing, unknown or out of range."""
        kind = self._kind()
        has_steps = kind.at_start is None
        names = ["rank", *(["step", "until"] if has_steps else []), "attempt"]
        names += [value.name for value in kind.values]
        for name in self._words:
            if name not in {"kind", *names}:
                raise ValueError(f"{kind.name} has no {name!r}; it has {', '.join(names)}")
        step = self._step() if has_steps else 0
        return Fault(
            kind=kind.name,
            rank=self._rank(),
            step=step,
            until=self._until(step) if has_steps else 1,
            attempt=self._attempt(),
            values={value.name: self._value(kind, value) for value in kind.values},
        )

    def _kind(self) -> Kind:
        name = self._words.get("kind", "")
        if name not in self._kinds:
            raise ValueError(
                f"{name!r} is not a kind of fault; the kinds are {', '.join(self._kinds)}"
            )
        return self._kinds[name]

    def _rank(self) -> int | None:
        match self._words.get("rank"):
            case None:
                raise ValueError("rank is missing; give a number, any or all")
            case "all":
                return None
            case "any":
                return self._any_rank
            case text:
                rank = _whole_number("rank", text)
        if rank < self._world_size:
            return rank
        raise ValueError(
            f"rank {rank} is outside the world of {self._world_size} ranks; "
            f"they run from 0 to {self._world_size - 1}"
        )

    def _step(self) -> int:
        text = self._words.get("step")
        if text is None:
            raise ValueError("step is missing; give a number, a range such as 10..20, or any")
        # The draw is a fraction, so that the same seed fits ranges of any length.
        ends = _RANGE.match(f"1..{self._steps}" if text == "any" else text)
        low, high = (int(ends[1]), int(ends[2])) if ends else (_whole_number("step", text),) * 2
        if 1 <= low <= high <= self._steps:
            return low + int(self._any_step * (high - low + 1))
        raise ValueError(f"step {text} is outside the run; its steps are 1 to {self._steps}")

    def _until(self, step: int) -> int | None:
        text = self._words.get("until", str(step + 1))
        if text == "end":
            return None
        until = _whole_number("until", text)
        if until <= step:
            raise ValueError(f"until {until} must be above step {step}, or end")
        return until

    def _attempt(self) -> int | None:
        text = self._words.get("attempt", "0")
        return None if text == "all" else _whole_number("attempt", text)

    def _value(self, kind: Kind, value: Value) -> float:
        text = self._words.get(value.name)
        if text is not None:
            return value.read(text)
        if value.default is None:
            raise ValueError(f"{kind.name} needs {value.name}={value.range}")
        return value.default


def _whole_number(name: str, text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    raise ValueError(f"{name} {text!r} is not a whole number")


def check_faults(config: TrainConfig, layout: Layout) -> None:
    """Refuses faults that the run cannot have, by a ValueError."""
    for fault in parse_all(config, layout.world_size):
        if reason := KINDS[fault.kind].refuses(fault, config, layout):
            raise ValueError(f"fault {fault.kind} cannot be in this run: {reason}")


def faults_of(config: TrainConfig, world: World) -> tuple[Fault, ...]:
    """The faults that a rank meets in the steps of this start of the job."""
    # Every rank parses all faults, so that what is left to chance is the same on each.
    return tuple(
        fault
        for fault in parse_all(config, world.size)
        if fault.concerns(world.rank, world.attempt) and KINDS[fault.kind].in_step is not None
    )


def apply_startup_faults(config: TrainConfig, world: World) -> Mapping[str, str]:
    """The environment with the startup faults of this rank, which ``world`` was read without."""
    environment: Mapping[str, str] = os.environ
    for fault in parse_all(config, world.size):
        kind = KINDS[fault.kind]
        if kind.at_start is not None and fault.concerns(world.rank, world.attempt):
            fault.announce(rank=world.rank, step=0)
            environment = kind.at_start(fault, environment)
    return environment


def inject(
    config: TrainConfig,
    world: World,
    parts: Sequence[GPT],
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Batch],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterable[Batch]:
    """The batches to train on, with this rank's faults attached to their steps.

    A run without faults gets its batches back unchanged. Evaluations have no faults.
    """

    def with_faults() -> Iterator[Batch]:
        for batch in batches:
            target = Target(
                parts=parts,
                optimizer=optimizer,
                checkpoint_dir=config.checkpoint_dir,
                batch=batch,
                sleep=sleep,
            )
            # The loop asks for the next batch when a step is over; the stack is left then.
            with ExitStack() as active:
                for fault in faults:
                    if fault.is_due(batch[0]):
                        in_step = KINDS[fault.kind].in_step
                        assert in_step is not None
                        fault.announce(rank=world.rank, step=batch[0])
                        active.enter_context(in_step(fault, target))
                yield target.batch

    faults = faults_of(config, world)
    return with_faults() if faults else batches
