"""Runs in which nobody is slow: whom does the report name, in windows as a user would give it?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from plan import Course
from runs import RANKS, root_folder, train
from verdicts import verdict_of, window, words

from lockstep_reports.readers.pages import read_attempt

WINDOW_STEPS = 1000
_A_RUN_STEPS = 14_000  # the rows that a page keeps are many times that
_SHARES = {"ddp": 0.8, "fsdp2": 0.12, "pipeline": 0.08}  # dearer steps, fewer of them
_SURE = 0.95


@dataclass(frozen=True, slots=True)
class Healthy:
    """What was said of healthy runs.

    Attributes:
        strategy: how they trained.
        windows: judged, of ``WINDOW_STEPS`` steps each.
        named: what was said of those in which somebody was named, by first step.
    """

    strategy: str
    windows: int
    named: dict[str, str]

    @property
    def rank_steps(self) -> int:
        """Steps judged, of all ranks together."""
        return self.windows * WINDOW_STEPS * RANKS


def rounds(strategy: str, rank_steps: int) -> list[int]:
    """Steps of each run of one strategy, whole windows; all strategies add up to ``rank_steps``."""
    windows = math.ceil(_SHARES[strategy] * rank_steps / (RANKS * WINDOW_STEPS))
    whole, rest = divmod(windows, _A_RUN_STEPS // WINDOW_STEPS)
    return [_A_RUN_STEPS] * whole + [rest * WINDOW_STEPS] * (rest > 0)


def run_healthy(strategy: str, steps: int, device_seconds: float) -> Healthy:
    """Trains and judges each window on its own.

    Args:
        strategy: how.
        steps: of the run.
        device_seconds: what a device takes of each step; ranks that share too few cores for the
            rest of it are no healthy run.
    """
    course = Course((), steps, layers=1, micro_batches=4, forward_seconds=device_seconds / 3)
    with root_folder() as root:
        return judged(strategy, train(strategy, root, course))


def judged(strategy: str, attempt: Path) -> Healthy:
    """Judges each window of a run."""
    rows = read_attempt(attempt)
    windows = len(rows.numbers) // WINDOW_STEPS
    named = {}
    for number in range(windows):
        first = int(rows.numbers[0]) + number * WINDOW_STEPS
        verdict = verdict_of(window(rows, first, first + WINDOW_STEPS))
        if verdict.kind in {"rank", "group"}:
            named[str(first)] = words(verdict)
    return Healthy(strategy, windows, named)


def at_most(named: int, of: int) -> float:
    """The share that is exceeded with 5 % chance at most, exactly (Clopper and Pearson).

    With nobody named it is 1 - 0.05^(1/n), the rule of three: about 3/n.
    """
    low, high = named / of, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        term = chance = (1 - middle) ** of
        for k in range(1, named + 1):
            term *= (of - k + 1) / k * middle / (1 - middle)
            chance += term
        low, high = (middle, high) if chance > 1 - _SURE else (low, middle)
    return high


def say(together: Sequence[Healthy]) -> list[str]:
    """Who was named, and the bound that follows."""
    windows = sum(one.windows for one in together)
    if not windows:
        return []
    rank_steps = sum(one.rank_steps for one in together)
    named = sum(len(one.named) for one in together)
    bound = at_most(named, windows)
    of = f"{windows} windows of {WINDOW_STEPS} steps, {rank_steps} rank-steps in all"
    alarms = f"in under {bound:.2%} of such windows, {bound / WINDOW_STEPS / RANKS:.1e} a rank-step"
    return [
        f"healthy: somebody was named in {named} of {of}",
        f"false alarms, with 95 % sureness: {alarms}",
        *(
            f"wrong: healthy {one.strategy}, {WINDOW_STEPS} steps from {first}: {said}"
            for one in together
            for first, said in one.named.items()
        ),
    ]
