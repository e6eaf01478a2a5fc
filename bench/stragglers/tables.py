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


def whole_table(judged: Mapping[str, Sequence[Judged]], named: Sequence[Named]) -> Table:
    """Right verdicts of all, with the median of the steps that they took; and of the peers.

    Args:
        judged: the trials of each strategy, watched by Lockstep alone.
        named: those with the other tools in the same loop.
    """
    columns = [f"steady {percent} %" for percent in PERCENTS]
    tools = [f"beside: {tool}" for tool in (named[0].said if named else ())]
    out = Table("strategy", "slow in", "to be named", *columns, *PATTERNS[1:], *tools)
    for strategy in dict.fromkeys((*judged, *(one.strategy for one in named))):
        of_it = [one for one in named if one.strategy == strategy]
        for origin in (*ORIGINS, "nowhere"):
            cells = defaultdict(list)
            for one in judged.get(strategy, ()):
                steady = one.trial.pattern == "steady"
                if _origin(one.trial) == origin:
                    name = f"steady {one.trial.percent} %" if steady else one.trial.pattern
                    cells[name].append(one)
            who = f"rank, {PHASES[origin]}" if origin in PHASES else "nobody"
            ours = (_cell(cells[kind]) for kind in (*columns, *PATTERNS[1:]))
            theirs = _peer_cells([one for one in of_it if _origin(one.trial) == origin], len(tools))
            out.add_row(strategy, origin, who, *ours, *theirs)
        out.add_section()
    return out


def _origin(trial: Trial) -> str:
    return "nowhere" if trial.pattern == "none" else trial.origin


def _peer_cells(named: Sequence[Named], tools: int) -> list[str]:
    """How many each tool had right, and what it said of the first that it had not."""
    if not named:
        return [""] * tools
    cells = []
    for tool in named[0].said:
        wrong = [f" {one.said[tool]}" for one in named if not one.right[tool]]
        cells.append(f"{len(named) - len(wrong)}/{len(named)}{''.join(wrong[:1])}")
    return cells


def _cell(judged: Sequence[Judged]) -> str:
    if not judged:
        return ""
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


def peer_sums(named: Sequence[Named]) -> list[str]:
    """How many each tool had right, of all that had three tools in one loop."""
    tools = named[0].right if named else ()
    right = (f"{tool} {sum(one.right[tool] for one in named)}" for tool in tools)
    return [f"three tools in one loop, right of {len(named)}: {', '.join(right)}"] if named else []
