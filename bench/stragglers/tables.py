"""Tables: right verdicts by kind of trial, sums, and every wrong one in words."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from plan import ORIGINS, PATTERNS, PERCENTS, Trial
from rich.table import Table
from verdicts import PHASES, TrialResult

_SOON = 20  # steps
_LARGE, _SLIGHT = 35, 12  # percent of the median step


def result_table(results: Mapping[str, Sequence[TrialResult]]) -> Table:
    """Correct verdicts of each strategy's trials, with the median of the steps that they needed."""
    columns = [f"steady {percent} %" for percent in PERCENTS]
    out = Table("strategy", "slow in", "to be named", *columns, *PATTERNS[1:])
    for strategy, trials in results.items():
        for origin in (*ORIGINS, "nowhere"):
            cells = defaultdict(list)
            for result in trials:
                steady = result.trial.pattern == "steady"
                if _origin(result.trial) == origin:
                    name = f"steady {result.trial.percent} %" if steady else result.trial.pattern
                    cells[name].append(result)
            expected = f"rank, {PHASES[origin]}" if origin in PHASES else "nobody"
            ours = (_cell(cells[kind]) for kind in (*columns, *PATTERNS[1:]))
            out.add_row(strategy, origin, expected, *ours)
        out.add_section()
    return out


def _origin(trial: Trial) -> str:
    return "nowhere" if trial.pattern == "none" else trial.origin


def _cell(results: Sequence[TrialResult]) -> str:
    if not results:
        return ""
    right = [result for result in results if result.right]
    num_steps = [result.num_steps for result in right if result.num_steps]
    steps_text = (
        f" in {statistics.median(num_steps):.0f}" if num_steps and right[0].trial.percent else ""
    )
    return f"{len(right)}/{len(results)}{steps_text}"


def sums(results: Sequence[TrialResult]) -> list[str]:
    """Numbers of correct verdicts in time, and each wrong one."""

    def count(name: str, results: Sequence[TrialResult]) -> str:
        right = sum(result.right and (result.num_steps or _SOON + 1) <= _SOON for result in results)
        return f"{name}: {right} of {len(results)} right within {_SOON} steps"

    steady = [
        result
        for result in results
        if result.trial.pattern == "steady" and result.trial.origin != "collective"
    ]
    large = [result for result in steady if result.trial.percent >= _LARGE]
    slight = [result for result in steady if result.trial.percent == _SLIGHT]
    rotating = [result for result in results if result.trial.pattern == "rotating"]
    rotating = [
        result
        for result in rotating
        if result.trial.percent >= _LARGE and result.trial.origin in PHASES
    ]
    num_rotating = sum(result.answer.startswith("in_turns") for result in rotating)
    late = [result for result in steady if result.right and (result.num_steps or 0) > _SOON]
    return [
        count(f"steady, {_LARGE} % and more, right rank and phase", large),
        count(f"steady, {_SLIGHT} %, right rank and phase", slight),
        f"rotating, {_LARGE} % and more: said to take turns in {num_rotating} of {len(rotating)}",
        *(
            f"wrong: {result.strategy}, {trial_text(result.trial)}: {result.answer}"
            for result in results
            if not result.right
        ),
        *(f"late: {r.strategy}, {trial_text(r.trial)}: right in {r.num_steps} steps" for r in late),
    ]


def trial_text(trial: Trial) -> str:
    """A trial in words."""
    if trial.pattern == "none":
        return f"nobody slow, steps from {trial.start}"
    return (
        f"rank {trial.rank} slow in {trial.origin} by {trial.percent} %, {trial.pattern}, "
        f"steps from {trial.start}"
    )
