"""The report's verdict on each trial, from the pages of the ranks, and after how many steps."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from plan import HEALTHY, Trial

from lockstep_reports.readers.pages import read_pages
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.score import score
from lockstep_reports.verdict.judge import judge
from lockstep_reports.verdict.verdict import Verdict

PHASES = {"loader": "data", "forward": "forward", "backward": "backward", "optimizer": "optimizer"}
_NAME_NOBODY = {"nobody", "workload", "unknown", "in_turns", "planned", "rare"}
_NUM_STEPS = (3, 5, 8, 10, 12, 15, 20, 30, 40, 60)


@dataclass(frozen=True, slots=True)
class TrialResult:
    """One trial and its verdict.

    Attributes:
        strategy: how the ranks trained.
        answer: the verdict at its end, in words.
        right: whether that is correct.
        num_steps: steps of the trial that were enough; None where it was never right.
    """

    strategy: str
    trial: Trial
    answer: str
    right: bool
    num_steps: int | None


def judge_trials(
    attempt: Path, trials: Sequence[Trial], strategy: str = "ddp"
) -> list[TrialResult]:
    """Judges each trial on its own, with the healthy steps before it.

    Args:
        attempt: folder in which the ranks left their pages.
        trials: the plan that they trained by.
        strategy: how.
    """
    steps = read_pages(attempt)[0]
    return [_judge_trial(steps, trial, strategy) for trial in trials]


def known_truths(trials: Sequence[Trial], path: str) -> list[dict[str, Any]]:
    """What ``bench/reports/rejudge.py`` holds the report on each trial against."""
    truths = []
    for number, trial in enumerate(trials):
        is_slow = trial.origin in PHASES and trial.pattern in {"steady", "intermittent"}
        slow = {"ranks": [trial.rank], "phase": PHASES.get(trial.origin)}
        # One rank once may be named or not; what a collective lost names nobody.
        nobody = {
            "kinds": ["workload", "unknown"],
            "may": [trial.rank] if trial.pattern == "one-shot" else [],
        }
        window = [trial.start - HEALTHY, trial.start + trial.steps - 1]
        name = f"{trial.origin}-{trial.percent}-{trial.pattern}-{number}"
        truth = {**(slow if is_slow else nobody), "lost": None}
        truths.append({"name": name, "path": path, "window": window, "truth": truth})
    return truths


def window(steps: Steps, first: int, last: int) -> Steps:
    """The steps from ``first`` up to ``last``, without the last."""
    inside = (steps.numbers >= first) & (steps.numbers < last)
    selected: dict[str, object] = {"numbers": steps.numbers[inside]}
    for field in fields(steps):
        value = getattr(steps, field.name)
        if isinstance(value, np.ndarray) and value.shape == (len(steps.members), len(inside)):
            selected[field.name] = value[:, inside]
    selected["phases"] = {name: seconds[:, inside] for name, seconds in steps.phases.items()}
    return replace(steps, **selected)  # type: ignore[arg-type]  # the same fields, fewer columns


def _judge_trial(steps: Steps, trial: Trial, strategy: str) -> TrialResult:
    begin, num_steps = trial.start - HEALTHY, None
    for count in (count for count in _NUM_STEPS if count <= trial.steps):
        verdict = verdict_of(window(steps, begin, trial.start + count))
        num_steps = (num_steps or count) if _right(verdict, trial) else None
    verdict = verdict_of(window(steps, begin, trial.start + trial.steps))
    return TrialResult(strategy, trial, verdict_text(verdict), _right(verdict, trial), num_steps)


def verdict_of(steps: Steps) -> Verdict:
    """The report's verdict on some steps."""
    return judge(steps, score(steps))[0]


def _right(verdict: Verdict, trial: Trial) -> bool:
    """Whether a verdict names the slow rank, and nobody else."""
    if trial.pattern == "none" or trial.origin not in PHASES:
        return verdict.kind in _NAME_NOBODY
    if trial.pattern == "rotating":
        return verdict.kind in {"nobody", "in_turns"}
    is_right = list(verdict.ranks) == [trial.rank] and verdict.kind == "rank"
    if trial.pattern == "one-shot":
        return is_right or verdict.kind != "rank"
    return is_right and verdict.phase == PHASES[trial.origin]


def verdict_text(verdict: Verdict) -> str:
    """Kind, ranks and phase; of a workload, its cause."""
    ranks = " ".join(str(rank) for rank in verdict.ranks)
    detail = verdict.cause if verdict.kind == "workload" else verdict.phase
    return " ".join(part for part in (verdict.kind, ranks, detail or "") if part)
