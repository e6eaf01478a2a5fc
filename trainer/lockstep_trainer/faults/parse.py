"""Reads faults from flags and from a TOML file, and draws by the seed what is left to chance.

A fault is ``KIND:rank=R,step=S,...`` as a flag; in a file it is a table ``[[fault]]`` with ``kind``
and the same names. ``rank`` and ``step`` may be ``any``, and ``step`` a range such as ``10..20``.
"""

import math
import random
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.faults.fault import Fault
from lockstep_trainer.faults.kind import Kind, Value
from lockstep_trainer.faults.kinds import KINDS

Words: TypeAlias = Mapping[str, str]

_RANGE = re.compile(r"^(\d+)\.\.(\d+)$")


def parse_all(config: TrainConfig, world_size: int) -> tuple[Fault, ...]:
    """All faults of a run, in the order of flags and then file; the same for the same seed.

    Raises:
        ValueError: one of them cannot be; one sentence names it, its value and what would be right.
    """
    faults = []
    for number, (where, words) in enumerate(_written(config)):
        chance = random.Random(f"{config.fault_seed}/{number}")
        try:
            faults.append(_Reader(words, config.steps, world_size, chance).read())
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
    return (*_of_simple_flags(config), *faults)


def _of_simple_flags(config: TrainConfig) -> Iterator[Fault]:
    """What --slow-rank and --nan-at ask for, in every attempt."""
    if config.slow_rank is not None:
        yield Fault(
            kind=f"slow-{config.slow_phase}",
            rank=config.slow_rank,
            step=config.slow_from,
            until=config.slow_until,
            values={"ms": config.slow_ms},
        )
    if config.nan_at is not None:
        yield Fault(kind="nan-loss", step=config.nan_at, until=config.nan_at + 1)


def _written(config: TrainConfig) -> Iterator[tuple[str, Words]]:
    """Every fault with where it stands."""
    for text in config.fault:
        kind, _, rest = text.partition(":")
        pairs = [pair.partition("=") for pair in rest.split(",")] if rest else []
        yield f"--fault {text!r}", _words([("kind", kind)] + [(k, v) for k, _, v in pairs])
    if config.faults is not None:
        for number, table in enumerate(_tables(config.faults), start=1):
            yield f"--faults {config.faults}, fault {number}", _words(table.items())


def _words(pairs: Iterable[tuple[str, Any]]) -> Words:
    words: dict[str, str] = {}
    for name, value in pairs:
        if name in words:
            raise ValueError(f"a --fault has {name}={value} and {name}={words[name]}; give one")
        words[name.strip()] = str(value).strip()
    return words


def _tables(path: Path) -> list[dict[str, Any]]:
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"--faults {path} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise ValueError(f"--faults {path} is no TOML: {error}") from error
    tables = told.pop("fault", [])
    tables_alone = isinstance(tables, list) and all(isinstance(one, dict) for one in tables)
    if told or not tables_alone:
        odd = next(iter(told), "fault")
        raise ValueError(f"--faults {path} has {odd!r}; it may have tables [[fault]] alone")
    return list(tables)


class _Reader:
    """Reads one fault from its words.

    Args:
        chance: draws what is left to it; always as often, so that one word does not change another.
    """

    def __init__(self, words: Words, steps: int, world_size: int, chance: random.Random) -> None:
        self._words, self._steps, self._world_size = words, steps, world_size
        self._any_rank, self._any_step = chance.randrange(world_size), chance.random()

    def read(self) -> Fault:
        """The fault.

        Raises:
            ValueError: a word is missing, unknown or out of range.
        """
        kind = self._kind()
        in_step = kind.in_step is not None
        names = ["rank", *(["step", "until"] if in_step else []), "attempt"]
        names += [value.name for value in kind.values]
        for name in self._words:
            if name not in {"kind", *names}:
                raise ValueError(f"{kind.name} has no {name!r}; it has {', '.join(names)}")
        step = self._step() if in_step else 0
        return Fault(
            kind=kind.name,
            rank=self._rank(),
            step=step,
            until=self._until(step) if in_step else 1,
            attempt=self._attempt(),
            values={value.name: self._value(kind, value) for value in kind.values},
        )

    def _kind(self) -> Kind:
        name = self._words.get("kind", "")
        if name not in KINDS:
            raise ValueError(f"{name!r} is no kind of fault; there are {', '.join(KINDS)}")
        return KINDS[name]

    def _rank(self) -> int | None:
        match self._words.get("rank"):
            case None:
                raise ValueError("rank is missing; give a number, any or all")
            case "all":
                return None
            case "any":
                return self._any_rank
            case text:
                rank = _whole("rank", text)
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
        ends = _RANGE.match(f"1..{self._steps}" if text == "any" else text)
        low, high = (int(ends[1]), int(ends[2])) if ends else (_whole("step", text),) * 2
        if 1 <= low <= high <= self._steps:
            return low + int(self._any_step * (high - low + 1))
        raise ValueError(f"step {text} is outside the run; its steps are 1 to {self._steps}")

    def _until(self, step: int) -> int | None:
        text = self._words.get("until", str(step + 1))
        if text == "end":
            return None
        until = _whole("until", text)
        if until <= step:
            raise ValueError(f"until {until} must be above step {step}, or end")
        return until

    def _attempt(self) -> int | None:
        text = self._words.get("attempt", "0")
        return None if text == "all" else _whole("attempt", text)

    def _value(self, kind: Kind, value: Value) -> float:
        text = self._words.get(value.name)
        if text is None:
            if value.default is None:
                raise ValueError(f"{kind.name} needs {value.name}={value.range}")
            return value.default
        try:
            number = float(int(text) if value.whole else float(text))
        except ValueError:
            number = math.nan
        if not value.low <= number <= value.high:
            sort = "whole number" if value.whole else "number"
            raise ValueError(f"{value.name} {text} must be a {sort} in {value.range}")
        return number


def _whole(name: str, text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    raise ValueError(f"{name} {text!r} is no whole number")
