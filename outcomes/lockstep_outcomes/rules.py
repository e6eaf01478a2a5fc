"""The outcome table: from top to bottom, the first rule whose signs are there decides.

A sign comes from ``signs``: an exit status, a signal, a line or an exception (by the table of the
job logs, ``joblogs.kinds``), a word of the scheduler, a page, or an incident of a node. A
cause that a line can name has class and wording from that table, so that it exists once.
"""

import signal
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

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
    failure_class: FailureClass | None
    blame: Verdict
    reason: str
    also: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    extent: Extent = "any"


def _names(*tiers: Tier) -> tuple[str, ...]:
    """Names of the job logs' kinds of some tiers, in the order of their table."""
    return tuple(dict.fromkeys(kind.name for kind in (*KINDS, DATA_ERROR) if kind.tier in tiers))


SYNONYMS = {
    "host_oom": ("out_of_memory",),
    "launch_failure": ("not_found", "not_executable"),
    "bad_arguments": ("bad_input",),
    "node_failure": ("node_lost",),
    "gpu_fault": ("gpu_lost", "ecc_error"),
}
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
    return Rule(kind.name, signs, "failed", kind.failure_class, kind.blame, reason)


_CRASHES = ("segfault", "bus_error", "aborted", "killed", "crashed")
_FAILURES = (*_names(Tier.CAUSE, Tier.CRASH, Tier.NETWORK), *_CRASHES, "exit")
PEERS = ("gloo_closed", "nccl_remote", "store_lost", "taken_down", "hidden_cause", "peer_ended",
         "peer_lost", "watchdog_stuck")  # fmt: skip
"""Signs of a rank that fails because another one is not there."""
_OUTSIDE = ("time_limit", "preempted", "preempted_exit", "gave_way", "evicted", "cancelled",
            "slurm_cancelled", "interrupted", "torchrun_signal")  # fmt: skip
OUTSIDE_SIGNS = frozenset(_OUTSIDE) - {"gave_way"}
"""Signs that somebody outside ended the job: what ranks show from then on is a consequence."""

# fmt: off
RULES: tuple[Rule, ...] = (
    # --- after a reported success nothing changes the outcome
    Rule("time_limit_after_success", ("success",), "succeeded", None, "nobody",
         "The run reported its success; its time limit ended it afterwards.",
         also=("time_limit",)),
    Rule("ended_after_success", ("success",), "succeeded", None, "nobody",
         "The run reported its success and was ended afterwards.",
         also=("cancelled", "slurm_cancelled", "preempted", "evicted", "terminated")),
    Rule("teardown_crash", ("success",), "succeeded", None, "nobody",
         "The run reported its success; what failed afterwards was the leaving ({also}).",
         also=_FAILURES),
    Rule("time_limit_after_success", ("loop_done",), "succeeded", None, "nobody",
         "Every rank had ended its loop; its time limit ended it while it left.",
         also=("time_limit",), unless=("exit", "exception", "data_error", "gpu_oom", "gave_way"),
         extent="all"),
    # A page says that the loop ended also where the program then leaves with an error of its own:
    # only a signal is surely of the teardown.
    Rule("teardown_crash", ("loop_done",), "succeeded", None, "nobody",
         "Every rank had ended its loop; what failed afterwards was the leaving ({also}).",
         also=_CRASHES, unless=("exit", "exception", "data_error", "gpu_oom", "gave_way"),
         extent="all"),
    Rule("success", ("success",), "succeeded", None, "nobody", "The run reported its success."),
    # Ranks that end well have survived whatever they printed and whatever happened to their node.
    Rule("success", ("exit_ok",), "succeeded", None, "nobody", "Every rank ended without an error.",
         unless=("not_converged", "exit", *_OUTSIDE, "node_failure", "node_lost"), extent="all"),
    # --- the program's own word
    Rule("not_converged", ("not_converged",), "not_converged", None, "workload",
         "The run ended by itself without its target."),
    Rule("preemption", ("gave_way", "preempted_exit"), "preempted", None, "nobody",
         "It saved its state and gave way; nothing had failed.",
         unless=(*_names(Tier.CAUSE, Tier.CRASH), *_CRASHES, "exit", "time_limit")),
    # --- causes that name themselves, before whatever followed from them
    *_make_rules(Tier.CAUSE),
    *_make_rules(Tier.CRASH),
    Rule("killed", ("killed",), "failed", "unknown", "rank",
         "{Ranks} killed by SIGKILL, and nothing tells by whom."),
    Rule("aborted", ("crashed",), "failed", "unknown", "rank", "Ended by {sign}{ranks}."),
    # --- ranks that ended elsewhere than the others, which then wait for nobody
    Rule("uneven_end", ("uneven_end",), "failed", "user", "rank", "{sign}.",
         also=(*PEERS, "hang", "nccl_timeout")),
    # --- somebody outside ended it
    Rule("hang", ("hang",), "failed", "unknown", "rank",
         "It had hung when it was ended: {sign}.", also=_OUTSIDE),
    Rule("time_limit", ("time_limit",), "time_limit", "user", "nobody",
         "It was still running when its time limit ended it; nothing had failed."),
    Rule("preemption", ("preempted",), "preempted", None, "nobody",
         "It was preempted; nothing had failed."),
    Rule("eviction", ("evicted",), "preempted", None, "nobody",
         "The kubelet evicted it to keep its node alive."),
    Rule("cancelled", ("cancelled", "slurm_cancelled", "interrupted", "torchrun_signal"),
         "cancelled", None, "nobody", "It was cancelled from outside; nothing had failed."),
    # --- the network, a hang, and what only follows from the failure of another
    *_make_rules(Tier.NETWORK),
    Rule("hang", ("hang",), "failed", "unknown", "rank",
         "It hung: {sign}."),
    Rule("collective_timeout", ("nccl_timeout",), "failed", "unknown", "unknown",
         "A collective timed out, and nothing tells which rank failed first."),
    Rule("aborted", ("aborted",), "failed", "unknown", "rank", "Ended by {sign}{ranks}.",
         unless=PEERS),
    Rule("peer_failure", ("unlike_calls",), "failed", "unknown", "unknown",
         "Its connections to others broke: {sign}."),
    Rule("peer_failure", (*PEERS, "aborted"), "failed", "unknown", "unknown",
         "Its connections to others broke, and nothing here tells why.",
         unless=("completed",)),
    Rule("pipe_closed", ("pipe_closed",), "failed", "user", "rank",
         "{Ranks} stopped by a write to a pipe or socket whose reader had gone."),
    Rule("exit", ("exit", "loop_failed"), "failed", "unknown", "rank",
         "Failed with {sign}{ranks} and reported no cause."),
    Rule("peer_failure", ("terminated",), "failed", "unknown", "unknown",
         "Its launcher ended it, for something failed elsewhere.", unless=("completed",)),
    # --- nothing failed
    Rule("success", ("completed",), "succeeded", None, "nobody", "It ended without an error."),
    Rule("success", ("exit_ok", "loop_done"), "succeeded", None, "nobody",
         "It ended without an error.", extent="all"),
    Rule("unknown", (), "unknown", "unknown", "unknown",
         "Nothing tells what became of it."),
)
# fmt: on


def cause_of(sign: str) -> str:
    """The name of the rule that decides where a sign is all that is known."""
    return next((rule.name for rule in RULES if sign in rule.signs and not rule.also), sign)


_SHELL = 128
"""A shell reports a signal as 128 plus its number."""
_SOFTWARE_XIDS = frozenset(map(str, SOFTWARE_XIDS))
_ANY_YEAR = 2000  # of lines whose times nobody asks for
_MOST_TAIL_CHARACTERS = 65_536

_WORDS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def _signs(source: str) -> dict[str, str]:
    return {word: sign for sign, words in _WORDS[source].items() for word in words}


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
