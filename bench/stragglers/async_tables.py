"""What is printed of the trials on the asynchronous device, and of where its time went."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from competitors import CompetitorResult
from plan import ORIGINS, PERCENTS, Trial
from rich.console import Console
from rich.table import Table
from tables import competitor_sums, result_table, trial_text
from verdicts import PHASES, TrialResult

from lockstep_catalogue.vocabulary import CLOCKS

_LARGE, _SLIGHT = 35, PERCENTS[-1]
_SOON = 20  # steps


def _sum_text(results: list[TrialResult], name: str) -> str:
    right = sum(result.right and (result.num_steps or _SOON + 1) <= _SOON for result in results)
    return f"{name}: {right} of {len(results)} right within {_SOON} steps"


def _sums(results: list[TrialResult]) -> Iterator[str]:
    steady = [r for r in results if r.trial.pattern == "steady" and r.trial.origin in ORIGINS[:-1]]
    yield _sum_text([r for r in steady if r.trial.percent >= _LARGE], f"{_LARGE} % and more")
    yield _sum_text([r for r in steady if r.trial.percent == _SLIGHT], f"{_SLIGHT} %")
    others: dict[str, list[TrialResult]] = defaultdict(list)
    for result in results:
        if result.trial.pattern != "steady":
            others[result.trial.pattern].append(result)
        elif result.trial.origin not in ORIGINS[:-1]:
            others[result.trial.origin].append(result)
    for kind, of_kind in others.items():
        expected = "rank, forward" if kind == "launch" else "nobody"
        yield f"{kind} ({expected}): {sum(r.right for r in of_kind)} of {len(of_kind)} right"


def _statement_lines(results: Mapping[str, Any]) -> Iterator[str]:
    for name, part in results.items():
        states = part["statement"]
        programmed = states["programmed"]
        covered = sum(states.values()) - programmed - states["startup"]
        shares = ", ".join(
            f"{state} {seconds / covered:.1%}"
            for state, seconds in states.items()
            if seconds and state not in {"programmed", "startup"}
        )
        error = (states["productive"] - programmed) / covered
        yield f"{name}: {shares}; productive against the program {error:+.2%} of all time"
        if "alignment" in part:
            figures = ", ".join(f"{1e6 * seconds:.0f}" for seconds in part["alignment"])
            yield f"{name}: a step's beginning is wrong by {figures} us: median, 99 %, largest"


def print_results(out: Console, results: Mapping[str, Any]) -> None:
    """Prints the parts of a bench, by the names of their files."""
    by_clock: dict[str, list[TrialResult]] = {clock: [] for clock in reversed(CLOCKS)}
    for part in results.values():
        for clock, values in part.get("trials", {}).items():
            found = [TrialResult(**value | {"trial": Trial(**value["trial"])}) for value in values]
            by_clock[clock] += [r for r in found if r.trial.start not in part["exposed"]]
    out.print(_table(by_clock))
    if exposed := sum(len(part.get("exposed", ())) for part in results.values()):
        out.print(f"left out: {exposed} hidden loaders for which the device had to wait")
    for clock, found in by_clock.items():
        out.print(f"by the {clock}'s clock:", *(f"  {line}" for line in _sums(found)), sep="\n")
    out.print("\n".join(_wrong_lines(by_clock["device"])))
    peers = [part for name, part in results.items() if name.startswith("peers")]
    compared = [CompetitorResult(**part | {"trial": Trial(**part["trial"])}) for part in peers]
    if compared:
        out.print(result_table({}, compared))
    statements = {name: part for name, part in results.items() if "statement" in part}
    lines = (*competitor_sums(compared), *_healthy_lines(results), *_statement_lines(statements))
    out.print("\n".join(lines))


def _table(by_clock: Mapping[str, list[TrialResult]]) -> Table:
    table = Table("clock", "strategy", "slow in", "right of all")
    for clock, found in by_clock.items():
        for strategy in dict.fromkeys(r.strategy for r in found):
            of_strategy = [r for r in found if r.strategy == strategy]
            for origin in dict.fromkeys((*PHASES, *(r.trial.origin for r in of_strategy))):
                of_origin = [r for r in of_strategy if r.trial.origin == origin]
                right = sum(r.right for r in of_origin)
                table.add_row(clock, strategy, origin, f"{right}/{len(of_origin)}")
    return table


def _wrong_lines(results: list[TrialResult]) -> Iterator[str]:
    for r in results:
        is_steady = r.trial.origin in PHASES and r.trial.pattern == "steady"
        if not r.right or (is_steady and (r.num_steps or 0) > _SOON):
            answer = f"{r.answer}, right in {r.num_steps} steps"
            yield f"wrong or late: {r.strategy}, {trial_text(r.trial)}: {answer}"


def _healthy_lines(results: Mapping[str, Any]) -> Iterator[str]:
    healthy = [part for name, part in results.items() if name.startswith("healthy")]
    if healthy:
        rank_steps = sum(part["rank_steps"] for part in healthy)
        named = [answer for part in healthy for answer in part["named"].values()]
        yield f"healthy: {len(named)} windows name somebody in {rank_steps} rank-steps {named}"
