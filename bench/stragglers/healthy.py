"""Runs in which nobody is slow: whom does the report name, in windows as a user would give it?"""

import math
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cores import WINDOW_STEPS, Reading, read_cores
from plan import Course
from runs import Launch, root_folder, train
from verdicts import verdict_of, window, words

from lockstep_reports.readers.pages import read_attempt

_A_RUN_STEPS = 32_000  # half the rows that a page keeps
_SHARES = {"ddp": 0.96, "fsdp2": 0.02, "pipeline": 0.02}  # dearer steps, fewer of them
_RANKS = {"ddp": 8, "fsdp2": 4, "pipeline": 4}  # more of them, not shorter steps, make a million
_LONGER = {"ddp": 1, "fsdp2": 2, "pipeline": 2}  # their devices, as more goes between them
_SURE = 0.95


@dataclass(frozen=True, slots=True)
class Healthy:
    """What was said of healthy runs.

    Attributes:
        strategy: how they trained.
        windows: judged, of ``WINDOW_STEPS`` steps each.
        named: what was said of those in which somebody was named, by first step.
        processor_seconds: that all ranks took of the cores.
        wall_seconds: of the steps, without the start.
    """

    strategy: str
    windows: int
    named: dict[str, str]
    processor_seconds: float
    wall_seconds: float

    @property
    def rank_steps(self) -> int:
        """Steps judged, of all ranks together."""
        return self.windows * WINDOW_STEPS * _RANKS[self.strategy]


def rounds(strategy: str, rank_steps: int) -> list[int]:
    """Steps of each run of one strategy, whole windows; all strategies add up to ``rank_steps``."""
    windows = math.ceil(_SHARES[strategy] * rank_steps / (_RANKS[strategy] * WINDOW_STEPS))
    whole, rest = divmod(windows, _A_RUN_STEPS // WINDOW_STEPS)
    return [_A_RUN_STEPS] * whole + [rest * WINDOW_STEPS] * (rest > 0)


def run_healthy(
    strategy: str, steps: int, device_seconds: float, keep: Path | None = None
) -> Healthy:
    """Trains and judges each window on its own.

    Args:
        strategy: how.
        steps: of the run, whole windows.
        device_seconds: what a device takes of each step of DDP, the cheapest; ranks that share too
            few cores for the rest of it are no healthy run.
        keep: where a recording goes in which somebody was named.
    """
    seconds = device_seconds * _LONGER[strategy] / 3
    course = Course(
        (), steps, layers=1, micro_batches=4, forward_seconds=seconds, clipping=strategy != "ddp"
    )
    with root_folder() as root:
        attempt = train(strategy, root, course, Launch(ranks=_RANKS[strategy]))
        made = judged(strategy, attempt, read_cores(root, _RANKS[strategy]))
        if made.named and keep:
            shutil.copytree(
                attempt, keep, ignore=shutil.ignore_patterns("*.sock"), dirs_exist_ok=True
            )
        return made


def judged(strategy: str, attempt: Path, cores: Sequence[Sequence[Reading]]) -> Healthy:
    """Judges each window of a run.

    Args:
        strategy: how it trained.
        attempt: folder of its pages.
        cores: of each rank, a reading at the beginning of each window and one at the end.
    """
    rows = read_attempt(attempt)
    windows = len(rows.numbers) // WINDOW_STEPS
    named = {}
    for number in range(windows):
        first = int(rows.numbers[0]) + number * WINDOW_STEPS
        verdict = verdict_of(window(rows, first, first + WINDOW_STEPS))
        if verdict.kind in {"rank", "group"}:
            waits = [one[number + 1].waited_seconds - one[number].waited_seconds for one in cores]
            told = " ".join(f"{seconds:.2f}" for seconds in waits)
            named[str(first)] = f"{words(verdict)}; waited for a core, rank by rank: {told} s"
    processor = sum(one[-1].processor_seconds - one[0].processor_seconds for one in cores)
    wall = max(one[-1].wall_seconds - one[0].wall_seconds for one in cores)
    return Healthy(strategy, windows, named, processor, wall)


def at_most(named: int, of: int) -> float:
    """The share that is exceeded with 5 % chance at most, exactly (Clopper and Pearson).

    With nobody named it is 1 - 0.05^(1/n), the rule of three: about 3/n; with somebody named in
    each window nothing is ruled out.
    """
    if named == of:
        return 1.0
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
    alarms = f"in under {bound:.2%} of such windows, {bound * windows / rank_steps:.1e} a rank-step"
    return [
        f"healthy: somebody was named in {named} of {of}",
        f"false alarms, with 95 % sureness: {alarms}",
        *_costs(together),
        *(
            f"wrong: healthy {one.strategy}, {WINDOW_STEPS} steps from {first}: {said}"
            for one in together
            for first, said in one.named.items()
        ),
    ]


def _costs(together: Sequence[Healthy]) -> Iterator[str]:
    for strategy in _SHARES:
        runs = [one for one in together if one.strategy == strategy]
        steps = sum(one.rank_steps for one in runs)
        processor = sum(one.processor_seconds for one in runs)
        wall = sum(one.wall_seconds for one in runs)
        if steps:
            yield (
                f"  {strategy}, {_RANKS[strategy]} ranks: {steps} rank-steps in {wall / 60:.1f} "
                f"min, {processor / steps * 1e3:.2f} ms of processor each, "
                f"{processor / wall / (os.cpu_count() or 1):.0%} of the cores"
            )
