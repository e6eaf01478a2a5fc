"""Which rank is slow where, by how much and in which steps: one trial after another in one run."""

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ORIGINS = ("loader", "forward", "backward", "optimizer", "collective")
PERCENTS = (250, 60, 35, 12)
PATTERNS = ("steady", "intermittent", "rotating", "one-shot", "none")
WARM_UP = 40  # quick steps at the beginning, from which the size of a step is taken
HEALTHY = 30  # quick steps before each trial
_STEPS = {"intermittent": 60, "rotating": 40}
_FEWEST_STEPS = 20
EVERY = 3  # an intermittent fault comes in each third step


@dataclass(frozen=True, slots=True)
class Trial:
    """One fault of one rank.

    Attributes:
        origin: where the rank is slow.
        percent: by how much, of the median step.
        pattern: in which of the trial's steps.
        rank: who is slow; of a rotating fault, who is first.
        start: first step of the trial, after its healthy ones.
        steps: steps that the trial has.
    """

    origin: str
    percent: int
    pattern: str
    rank: int
    start: int
    steps: int

    def is_slow(self, step: int, rank: int, ranks: int) -> bool:
        """Whether a rank is slow in a step."""
        return self.slow_rank(step, ranks) == rank

    def slow_rank(self, step: int, ranks: int) -> int | None:
        """Who is slow in a step, if anybody is."""
        since = step - self.start
        if not 0 <= since < self.steps or self.pattern == "none":
            return None
        if self.pattern == "one-shot":
            return self.rank if since == 0 else None
        if self.pattern == "intermittent":
            return self.rank if since % EVERY == 0 else None
        if self.pattern == "rotating":
            return (self.rank + since) % ranks
        return self.rank


@dataclass(frozen=True, slots=True)
class Course:
    """What the ranks of one run do.

    Attributes:
        trials: when they are slow; none for a healthy run.
        steps: steps to train.
        layers: of the model, or stages' worth of them in a pipeline.
        micro_batches: of a pipeline's step.
        forward_seconds: time of a layer on its device; the backward takes twice that.
        clipping: whether an all-reduce of one number goes before the optimizer's step.
    """

    trials: tuple[Trial, ...]
    steps: int
    layers: int = 2
    micro_batches: int = 4
    forward_seconds: float = 0.003
    clipping: bool = True

    def write(self, path: Path) -> None:
        """Writes it for the ranks."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "Course":
        """Reads what ``write`` wrote."""
        fields = json.loads(path.read_text(encoding="utf-8"))
        return cls(**fields | {"trials": tuple(Trial(**trial) for trial in fields["trials"])})


def plan(ranks: int, seed: int, repeats: int) -> list[Trial]:
    """All trials of a run, in an order drawn by the seed; steady ones several times."""
    return _shuffled(ranks, seed, list(_cells(repeats)))


def quick_plan(ranks: int, seed: int) -> list[Trial]:
    """One large steady trial of each origin, and one in which nobody is slow."""
    steady = [(origin, PERCENTS[0], "steady") for origin in ORIGINS]
    return _shuffled(ranks, seed, [*steady, ("loader", 0, "none")])


def _shuffled(ranks: int, seed: int, cells: list[tuple[str, int, str]]) -> list[Trial]:
    draw = random.Random(seed)
    draw.shuffle(cells)
    trials, start = [], WARM_UP
    for origin, percent, pattern in cells:
        steps = _STEPS.get(pattern, _FEWEST_STEPS)
        start += HEALTHY
        trials.append(Trial(origin, percent, pattern, draw.randrange(ranks), start, steps))
        start += steps
    return trials


def last_step(trials: list[Trial]) -> int:
    """The step after which the run may end."""
    return max(trial.start + trial.steps for trial in trials)


def _cells(repeats: int) -> Iterator[tuple[str, int, str]]:
    for origin in ORIGINS:
        for percent in PERCENTS:
            times = 2 * repeats + 1 if percent == PERCENTS[-1] else repeats
            yield from [(origin, percent, "steady")] * times
            yield from ((origin, percent, pattern) for pattern in PATTERNS[1:-1])
    yield from [("loader", 0, "none")] * len(ORIGINS) * repeats
