"""What is printed: right verdicts by kind of trial, sums, and every wrong one in words."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from peers import Named
from plan import ORIGINS, PATTERNS, PERCENTS, Trial
from rich.table import Table
from verdicts import PHASES, Judged

_SOON = 20  # steps
_LARGE, _SLIGHT = 35, 12  # percent of the median step


def trials_table(judged: Mapping[str, Sequence[Judged]]) -> Table:
    """Right verdicts of all, with the median of the steps that they took."""
    columns = [f"steady {percent} %" for percent in PERCENTS]
    out = Table("strategy", "slow in", "to be named", *columns, *PATTERNS[1:])
    for strategy, all_of_them in judged.items():
        for origin in ORIGINS:
            cells = defaultdict(list)
            for one in all_of_them:
                steady = one.trial.pattern == "steady"
                name = f"steady {one.trial.percent} %" if steady else one.trial.pattern
                if one.trial.origin == origin or one.trial.pattern == "none":
                    cells[name].append(one)
            named = f"rank, {PHASES[origin]}" if origin in PHASES else "nobody"
            kinds = (*columns, *PATTERNS[1:])
            out.add_row(strategy, origin, named, *(_cell(cells[kind]) for kind in kinds))
    return out


def _cell(judged: Sequence[Judged]) -> str:
    right = [one for one in judged if one.right]
    after = [one.after for one in right if one.after]
    took = f" in {statistics.median(after):.0f}" if after and right[0].trial.percent else ""
    return f"{len(right)}/{len(judged)}{took}"


def sums(judged: Sequence[Judged]) -> list[str]:
    """How many were right, in time; and each wrong one."""

    def count(name: str, wanted: Sequence[Judged]) -> str:
        right = sum(one.right and (one.after or _SOON + 1) <= _SOON for one in wanted)
        return f"{name}: {right} of {len(wanted)} right within {_SOON} steps"

    steady = [
        one for one in judged if one.trial.pattern == "steady" and one.trial.origin != "collective"
    ]
    large = [one for one in steady if one.trial.percent >= _LARGE]
    slight = [one for one in steady if one.trial.percent == _SLIGHT]
    turns = [one for one in judged if one.trial.pattern == "rotating"]
    turns = [one for one in turns if one.trial.percent >= _LARGE and one.trial.origin in PHASES]
    told = sum(one.said == "workload rotating" for one in turns)
    late = [one for one in steady if one.right and (one.after or 0) > _SOON]
    return [
        count(f"steady, {_LARGE} % and more, right rank and phase", large),
        count(f"steady, {_SLIGHT} %, right rank and phase", slight),
        f"rotating, {_LARGE} % and more: said to take turns in {told} of {len(turns)}",
        *(
            f"wrong: {one.strategy}, {_who(one.trial)}: {one.said}"
            for one in judged
            if not one.right
        ),
        *(f"late: {one.strategy}, {_who(one.trial)}: right in {one.after} steps" for one in late),
    ]


def _who(trial: Trial) -> str:
    if trial.pattern == "none":
        return f"nobody slow, steps from {trial.start}"
    return (
        f"rank {trial.rank} slow in {trial.origin} by {trial.percent} %, {trial.pattern}, "
        f"steps from {trial.start}"
    )


def peers_table(named: Sequence[Named]) -> Table:
    """What three tools said of the same trials, and which was right."""
    tools = list(named[0].said)
    out = Table("DDP, all three in one loop", *(f"{tool}" for tool in tools))
    for one in named:
        cells = (f"{'right' if one.right[tool] else 'WRONG'}: {one.said[tool]}" for tool in tools)
        out.add_row(_who(one.trial).partition(", steps")[0], *cells)
    out.add_row("right", *(f"{sum(one.right[t] for one in named)}/{len(named)}" for t in tools))
    return out
