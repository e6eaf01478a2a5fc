"""The outcome table, rules.toml: from top to bottom, the first rule that holds decides.

A sign comes from ``signs``: an exit status, a signal, a line or an exception (by the table of the
job logs, ``joblogs.kinds``), a word of the scheduler, a page, or an incident of a node. A
cause that a line can name has class and wording from that table, so that it exists once.
"""

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lockstep_catalogue.vocabulary import FailureClass, Outcome, Verdict
from lockstep_outcomes.evidence import Evidence, RankEnd
from lockstep_outcomes.joblogs.clock import Clock
from lockstep_outcomes.joblogs.kinds import (
    DATA_ERROR,
    KIND_BY_NAME,
    KINDS,
    SOFTWARE_XIDS,
    Kind,
    Tier,
)
from lockstep_outcomes.joblogs.scan import Scan
from lockstep_outcomes.uneven_ends import find_uneven_end, unlike_calls
from lockstep_records.events.event import OUT_OF_MEMORY, PREEMPTED
from lockstep_records.text.documents import read_toml

Extent = Literal["any", "all"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of the table.

    Attributes:
        name: the cause; of rules with one name the first that holds decides.
        signs: at least one of these is there.
        failure_class: who has to act; None unless it failed.
        blame: whom it names where few ranks show the sign; where most do, the workload.
        reason: one sentence, with ``{ranks}``, ``{sign}`` and ``{node}`` filled in.
        also: at least one of these is there too.
        unless: none of these is there.
        extent: whether any rank shows it, or every rank that has ended.
    """

    name: str
    signs: tuple[str, ...]
    outcome: Outcome
    blame: Verdict
    reason: str
    failure_class: FailureClass | None = None
    also: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    extent: Extent = "any"


def _names(*tiers: Tier) -> tuple[str, ...]:
    """Names of the job logs' kinds of some tiers, in the order of their table."""
    return tuple(dict.fromkeys(kind.name for kind in (*KINDS, DATA_ERROR) if kind.tier in tiers))


_TABLE = read_toml(Path(__file__).with_suffix(".toml"))
SYNONYMS: dict[str, list[str]] = _TABLE["synonyms"]
"""Signs of other sources that mean the same as a kind of line."""


def _make_rules(*tiers: Tier) -> tuple[Rule, ...]:
    """A rule for each kind of line of some tiers, with the other signs that mean the same."""
    by_name = {kind.name: kind for kind in (*reversed(KINDS), DATA_ERROR) if kind.tier in tiers}
    return tuple(_make_rule(by_name[name]) for name in _names(*tiers))


def _make_rule(kind: Kind) -> Rule:
    says = kind.says or kind.name.replace("_", " ")
    shows_text = kind.name in {"exception", "data_error", "xid"}
    # Who started the job wrong reads what the program said of it.
    text = ": {sign}" if kind.blame == "workload" else ""
    reason = "{sign}{ranks}." if shows_text else f"{says[:1].upper()}{says[1:]}{{ranks}}{text}."
    signs = (kind.name, *SYNONYMS.get(kind.name, ()))
    return Rule(kind.name, signs, "failed", kind.blame, reason, kind.failure_class)


_GROUPS: dict[str, list[str]] = _TABLE["groups"]
PEERS = tuple(_GROUPS["peers"])
"""Signs of a rank that fails because another one is not there."""
OUTSIDE_SIGNS = frozenset(_GROUPS["outside"]) - {"gave_way"}
"""Signs that somebody outside ended the job: what ranks show from then on is a consequence."""


def _read_rules(row: dict[str, Any]) -> Iterator[Rule]:
    if tier := row.get("tier"):
        yield from _make_rules(Tier[tier.upper()])
        return
    lists: dict[str, Any] = {
        key: tuple(_named(row[key])) for key in ("signs", "also", "unless") if key in row
    }
    yield Rule(**{**row, **lists})


def _named(names: list[str]) -> Iterator[str]:
    """Names of signs, with the members of groups and tiers for their own names."""
    for name in names:
        if not name.startswith("@"):
            yield name
        elif name[1:] in _GROUPS:
            yield from _GROUPS[name[1:]]
        else:
            yield from _names(*(Tier[tier.upper()] for tier in name[1:].split("+")))


RULES = tuple(rule for row in _TABLE["rules"] for rule in _read_rules(row))


def cause_of(sign: str) -> str:
    """The name of the rule that decides where a sign is all that is known."""
    return next((rule.name for rule in RULES if sign in rule.signs and not rule.also), sign)


_SHELL = 128
"""A shell reports a signal as 128 plus its number."""
_SOFTWARE_XIDS = frozenset(map(str, SOFTWARE_XIDS))
_ANY_YEAR = 2000  # of lines whose times nobody asks for
_MOST_TAIL_CHARACTERS = 65_536


def _signs(source: str) -> dict[str, str]:
    return {word: sign for sign, words in _TABLE[source].items() for word in words}


EXIT_SIGNS = {
    2: "bad_input",
    PREEMPTED: "gave_way",
    OUT_OF_MEMORY: "out_of_memory",
    124: "time_limit",  # of timeout(1)
    126: "not_executable",
    127: "not_found",
}
"""Exit status to sign; 0 is ``exit_ok``, any other ``exit``."""

SIGNAL_SIGNS = _signs("signals")
"""Signal that ended a rank to sign; any other is ``crashed``."""

SCHEDULER_SIGNS = _signs("slurm") | _signs("kubernetes")
"""Word of a scheduler to sign."""

PHASE_SIGNS = {"done": "loop_done", "failed": "loop_failed"}
"""Last phase of a rank's page to sign."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sign:
    """A piece of evidence.

    Attributes:
        source: exit, exception, output, page, scheduler, node, launcher, hang or report.
        ranks: that show it; empty where the source names none.
        text: what was found, for people.
        key: what distinguishes it from others of its name: the exception, the exit status.
    """

    name: str
    source: str
    ranks: tuple[int, ...] = ()
    node: str | None = None
    text: str = ""
    key: str = ""
    time: float | None = None


def signs_of(evidence: Evidence) -> list[Sign]:
    """All signs, in the order of the ranks' ends."""
    of_ranks = list(_rank_signs(evidence))
    return [
        *_outside_signs(evidence),
        *_node_signs(evidence),
        *of_ranks,
        *_compared_signs(evidence, of_ranks),
    ]


def signal_name(exit_code: int) -> str | None:
    """Name of the signal that an exit status tells of; None for an ordinary exit."""
    number = -exit_code if exit_code < 0 else exit_code - _SHELL if exit_code > _SHELL else 0
    try:
        return signal.Signals(number).name
    except ValueError:
        return None


def _outside_signs(evidence: Evidence) -> Iterator[Sign]:
    for word in evidence.scheduler:
        name = SCHEDULER_SIGNS.get(word, "unknown_word")
        yield Sign(name=name, source="scheduler", text=word, time=evidence.outside_time)
    if evidence.launcher_signal is not None:
        name = "time_limit" if evidence.at_time_limit else "cancelled"
        text = f"the launcher got {evidence.launcher_signal}"
        yield Sign(name=name, source="launcher", text=text, time=evidence.outside_time)
    for name in evidence.reported:
        yield Sign(name=name, source="report", text=name.replace("_", " "))
    if evidence.has_hung:
        yield Sign(name="hang", source="hang", ranks=evidence.missing,
                   text=evidence.hang_words or "no rank moved on")  # fmt: skip


def _node_signs(evidence: Evidence) -> Iterator[Sign]:
    for event in evidence.node_events:
        number = (event.detail.split() or [""])[0].removeprefix("Xid")
        is_software = event.sign == "xid" and number in _SOFTWARE_XIDS
        yield Sign(
            name="software_xid" if is_software else event.sign,
            source="node",
            ranks=event.ranks,
            node=event.node,
            text=event.detail,
            time=event.time,
        )


def _rank_signs(evidence: Evidence) -> Iterator[Sign]:
    for end in evidence.ranks:
        if end.exit_code is not None:
            yield _exit_sign(end, end.exit_code)
        if end.phase in PHASE_SIGNS:
            yield _sign(end, PHASE_SIGNS[end.phase], "page", f"a page that says {end.phase}")
        yield from _text_signs(end)


def _compared_signs(evidence: Evidence, of_ranks: list[Sign]) -> Iterator[Sign]:
    """Signs that no rank shows by itself."""
    uneven = find_uneven_end(evidence.ranks)
    if uneven is not None:
        text = uneven.words[:1].upper() + uneven.words[1:]
        yield Sign(name="uneven_end", source="page", ranks=uneven.ranks, text=text)
    waited = {sign.ranks[0] for sign in of_ranks if sign.name in PEERS}
    calls = [(e.rank, e.exception or "", e.last_step) for e in evidence.ranks if e.rank in waited]
    if text := unlike_calls(calls):
        yield Sign(name="unlike_calls", source="exception", text=text)


def status_sign(exit_code: int) -> str:
    """Name of the sign of an exit status; a signal's where a shell or Python reports one."""
    name = signal_name(exit_code)
    if name is not None:
        return SIGNAL_SIGNS.get(name, "crashed")
    return EXIT_SIGNS.get(exit_code, "exit_ok" if exit_code == 0 else "exit")


def _exit_sign(end: RankEnd, exit_code: int) -> Sign:
    text = signal_name(exit_code) or f"exit status {exit_code}"
    return _sign(end, status_sign(exit_code), "exit", text, key=str(exit_code))


def _text_signs(end: RankEnd) -> Iterator[Sign]:
    """Signs in the exception and in the last lines, by the table of the job logs."""
    if end.exception:
        # A traceback before it makes it an exception and not a line that mentions one.
        text = f'Traceback (most recent call last):\n  File "rank"\n{end.exception}\n'
        yield from _scanned(end, text, "exception")
    if end.last_lines:
        tail = end.last_lines[-_MOST_TAIL_CHARACTERS:]
        yield from _scanned(end, tail, "output")
        success = KIND_BY_NAME["success"].pattern
        line = next((line for line in tail.splitlines() if success.search(line)), None)
        if line is not None:
            yield _sign(end, "success", "output", line.strip())


def _scanned(end: RankEnd, text: str, source: str) -> Iterator[Sign]:
    scan = Scan("output", Clock(_ANY_YEAR))
    scan.add(text.encode("utf-8", "replace"))
    for (kind, key), group in scan.groups.items():
        yield _sign(end, kind, source, group.first.text, key=key)


def _sign(end: RankEnd, name: str, source: str, text: str, key: str = "") -> Sign:
    return Sign(
        name=name, source=source, ranks=(end.rank,), node=end.node, text=text, key=key,
        time=end.time,
    )  # fmt: skip
