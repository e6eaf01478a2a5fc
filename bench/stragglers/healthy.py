"""Runs in which nobody is slow: how often does the report name somebody in a window of one?"""

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from plan import Course
from runs import root_folder, train
from verdicts import verdict_of, verdict_text, window

from lockstep_reports.readers.pages import read_pages

WINDOW_STEPS = 1000
_MAX_RUN_STEPS = 32_000  # half the rows that a page keeps
_SHARES = {"ddp": 0.96, "fsdp2": 0.02, "pipeline": 0.02}  # dearer steps, fewer of them
_RANKS = {"ddp": 8, "fsdp2": 4, "pipeline": 4}  # more of them, not shorter steps, make a million
_DEVICE_FACTOR = {"ddp": 1, "fsdp2": 2, "pipeline": 2}  # their devices, as more goes between them
_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Healthy:
    """The verdicts on healthy runs.

    Attributes:
        strategy: how they trained.
        windows: judged, of ``WINDOW_STEPS`` steps each.
        named: the verdicts that name somebody, by first step of the window.
    """

    strategy: str
    windows: int
    named: dict[str, str]

    @property
    def rank_steps(self) -> int:
        """Steps judged, of all ranks together."""
        return self.windows * WINDOW_STEPS * _RANKS[self.strategy]


def rounds(strategy: str, rank_steps: int) -> list[int]:
    """Steps of each run of one strategy, whole windows; all strategies add up to ``rank_steps``."""
    windows = math.ceil(_SHARES[strategy] * rank_steps / (_RANKS[strategy] * WINDOW_STEPS))
    num_full, rest = divmod(windows, _MAX_RUN_STEPS // WINDOW_STEPS)
    return [_MAX_RUN_STEPS] * num_full + [rest * WINDOW_STEPS] * (rest > 0)


def run_healthy(
    strategy: str, steps: int, device_seconds: float, keep: Path | None = None
) -> Healthy:
    """Trains and judges each window on its own.

    Args:
        strategy: how.
        steps: of the run, whole windows.
        device_seconds: simulated device time of a DDP step, the cheapest. On too few cores a short
            one makes ranks wait for each other, which is not a healthy run.
        keep: folder for recordings in which somebody is named.
    """
    seconds = device_seconds * _DEVICE_FACTOR[strategy] / 3
    course = Course(
        (), steps, layers=1, micro_batches=4, forward_seconds=seconds, clipping=strategy != "ddp"
    )
    with root_folder() as root:
        attempt = train(strategy, root, course, _RANKS[strategy])
        result = judge_windows(strategy, attempt)
        if result.named and keep:
            shutil.copytree(
                attempt, keep, ignore=shutil.ignore_patterns("*.sock"), dirs_exist_ok=True
            )
        return result


def judge_windows(strategy: str, attempt: Path) -> Healthy:
    """Judges each window of a run.

    Args:
        strategy: how it trained.
        attempt: folder of its pages.
    """
    rows = read_pages(attempt)[0]
    windows = len(rows.numbers) // WINDOW_STEPS
    named = {}
    for number in range(windows):
        first = int(rows.numbers[0]) + number * WINDOW_STEPS
        verdict = verdict_of(window(rows, first, first + WINDOW_STEPS))
        if verdict.kind in {"rank", "group"}:
            named[str(first)] = verdict_text(verdict)
    return Healthy(strategy, windows, named)


def bound_share(named: int, of: int) -> float:
    """The share that is exceeded with 5 % chance at most, exactly (Clopper and Pearson).

    With nobody named it is 1 - 0.05^(1/n), the rule of three: about 3/n; with somebody named in
    each window nothing is ruled out.
    """
    if named == of:
        return 1.0
    low, high = named / of, 1.0
    for _ in range(60):
        share = (low + high) / 2
        term = chance = (1 - share) ** of
        for k in range(1, named + 1):
            term *= (of - k + 1) / k * share / (1 - share)
            chance += term
        low, high = (share, high) if chance > 1 - _CONFIDENCE else (low, share)
    return high


def healthy_lines(runs: Sequence[Healthy]) -> list[str]:
    """Sentences: who was named, and the bound on false alarms that follows."""
    windows = sum(run.windows for run in runs)
    if not windows:
        return []
    rank_steps = sum(run.rank_steps for run in runs)
    named = sum(len(run.named) for run in runs)
    bound = bound_share(named, windows)
    of = f"{windows} windows of {WINDOW_STEPS} steps, {rank_steps} rank-steps in all"
    alarms = f"in under {bound:.2%} of such windows, {bound * windows / rank_steps:.1e} a rank-step"
    return [
        f"healthy: somebody was named in {named} of {of}",
        f"false alarms, with 95 % sureness: {alarms}",
        *(
            f"wrong: healthy {run.strategy}, {WINDOW_STEPS} steps from {first}: {answer}"
            for run in runs
            for first, answer in run.named.items()
        ),
    ]
