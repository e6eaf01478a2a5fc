"""Tells the logs of one job, of its ranks or attempts, from those of several runs in one folder."""

from dataclasses import dataclass
from itertools import combinations

_NAMED = 8
_OVERLAP_SECONDS = 1.0
# Ranks of one job log the same steps, so that counts and medians of two runs rarely agree so well.
_ALIKE = 0.02
_START_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RunTrace:
    """What one file shows of a run.

    Attributes:
        is_of_rank: whether its name or folder says that it is the log of one rank or attempt.
        began: time at which training began; None where no line tells.
        ended: time of the last progress.
        is_done: whether the run reported how it ended.
        first_step: number of the first step; ``last_step`` of the last one.
        num_steps: recorded durations, with their ``median_seconds``.
    """

    name: str
    is_of_rank: bool
    began: float | None
    ended: float | None
    is_done: bool
    first_step: int | None
    last_step: int | None
    num_steps: int
    median_seconds: float | None


def different_runs(files: list[RunTrace]) -> list[str]:
    """Names of files that hold another run than some other file; empty where all are one job's."""
    trained = [
        file
        for file in files
        if not file.is_of_rank and (file.began is not None or file.first_step is not None)
    ]
    different: dict[str, None] = {}
    for first, second in combinations(trained, 2):
        if _are_two_runs(first, second):
            different |= {first.name: None, second.name: None}
    return list(different)


def refusal(folder: str, names: list[str]) -> str:
    """The sentence by which a folder with several runs is refused."""
    listed = ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
    return f"{folder} holds logs of {len(names)} runs ({listed}); give the log of one of them"


def _are_two_runs(first: RunTrace, second: RunTrace) -> bool:
    early, late = sorted((first, second), key=lambda file: file.began or 0.0)
    if early.began is None or late.began is None or early.ended is None:
        return _differ_in_steps(first, second)
    if late.began >= early.ended - _OVERLAP_SECONDS:
        # One after the other: attempts of one job go on where the last one was.
        return early.is_done or not _goes_on(early, late)
    if late.began - early.began > _START_SECONDS and first.is_done and second.is_done:
        return True
    return _differ_in_steps(first, second)


def _goes_on(early: RunTrace, late: RunTrace) -> bool:
    if early.first_step is None or late.first_step is None or early.last_step is None:
        return False
    return early.first_step < late.first_step <= early.last_step + 1 + early.last_step // 2


def _differ_in_steps(first: RunTrace, second: RunTrace) -> bool:
    """Whether both log many steps, and other ones."""
    if not (first.num_steps and second.num_steps):
        return False
    medians = [first.median_seconds or 0.0, second.median_seconds or 0.0]
    counts = [first.num_steps, second.num_steps]
    return all(min(pair) < (1 - _ALIKE) * max(pair) for pair in (medians, counts))
