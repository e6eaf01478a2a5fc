"""What the report says of each trial, from the rows that the ranks left, and how soon."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
from plan import HEALTHY, Trial

from lockstep_reports.readers.pages import read_attempt
from lockstep_reports.recording.steps import Steps
from lockstep_reports.score import score
from lockstep_reports.verdict.judge import judge
from lockstep_reports.verdict.verdict import Verdict

PHASES = {
    "loader": "data",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
}
_ROTATING = "rotating"
_AFTER = (3, 5, 8, 10, 12, 15, 20, 30, 40, 60)


@dataclass(frozen=True, slots=True)
class Judged:
    """One trial and what became of it.

    Attributes:
        strategy: how the ranks trained.
        said: who was named at its end, in words.
        right: whether that is so.
        after: steps of the trial that were enough; None where it was never right.
    """

    strategy: str
    trial: Trial
    said: str
    right: bool
    after: int | None


def judge_trials(attempt: Path, trials: Sequence[Trial], strategy: str = "ddp") -> list[Judged]:
    """Judges each trial on its own, with the healthy steps before it.

    Args:
        attempt: folder in which the ranks left their pages.
        trials: the plan that they trained by.
        strategy: how.
    """
    steps = read_attempt(attempt)
    return [_judged(steps, trial, strategy) for trial in trials]


def window(steps: Steps, first: int, last: int) -> Steps:
    """The rows of some steps, first to last without the last."""
    inside = (steps.numbers >= first) & (steps.numbers < last)
    cut: dict[str, object] = {"numbers": steps.numbers[inside]}
    for field in fields(steps):
        value = getattr(steps, field.name)
        if isinstance(value, np.ndarray) and value.shape == (len(steps.members), len(inside)):
            cut[field.name] = value[:, inside]
    cut["phases"] = {name: seconds[:, inside] for name, seconds in steps.phases.items()}
    return replace(steps, **cut)  # type: ignore[arg-type]  # the same fields, cut


def _judged(steps: Steps, trial: Trial, strategy: str) -> Judged:
    begin, after = trial.start - HEALTHY, None
    for count in (count for count in _AFTER if count <= trial.steps):
        verdict = verdict_of(window(steps, begin, trial.start + count))
        after = (after or count) if _right(verdict, trial) else None
    verdict = verdict_of(window(steps, begin, trial.start + trial.steps))
    return Judged(strategy, trial, words(verdict), _right(verdict, trial), after)


def verdict_of(steps: Steps) -> Verdict:
    """What the report says of them."""
    return judge(steps, score(steps))[0]


def _right(verdict: Verdict, trial: Trial) -> bool:
    """Whether a verdict accuses who it should, and nobody else."""
    if trial.pattern == "none" or trial.origin == "collective":
        return verdict.kind in {"nobody", "workload", "unknown"}
    if trial.pattern == "rotating":
        return verdict.kind == "nobody" or (verdict.kind, verdict.cause) == ("workload", _ROTATING)
    mine = list(verdict.ranks) == [trial.rank] and verdict.kind == "rank"
    if trial.pattern == "one-shot":
        return mine or verdict.kind != "rank"
    return mine and verdict.phase == PHASES[trial.origin]


def words(verdict: Verdict) -> str:
    """Kind, ranks and phase; of a workload, its cause."""
    who = " ".join(str(rank) for rank in verdict.ranks)
    why = verdict.cause if verdict.kind == "workload" else verdict.phase
    return " ".join(part for part in (verdict.kind, who, why or "") if part)
