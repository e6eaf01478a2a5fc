"""Judges evidence by the outcome table; what cannot be known is ``unknown``."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lockstep_catalogue import vocabulary
from lockstep_outcomes.evidence import Evidence, RankEnd
from lockstep_outcomes.joblogs.blame import rank_list
from lockstep_outcomes.rules import OUTSIDE_SIGNS, RULES, Rule, Sign, signal_name, signs_of
from lockstep_records.text.printable import printable

_MOST = 0.5  # of the ranks: where more fail alike, no single rank is to blame
_MOST_EVIDENCE = 12
_MAX_TEXT = 300
# Launcher and rank note the same moment one after the other.
_SLACK_SECONDS = 2.0
# Longer than a launcher takes from the first failure to the last SIGTERM, and than usual steps.
_STANDING_SECONDS = 5.0
_ENDED_WELL = frozenset({"exit_ok", "gave_way", "terminated"})
# How a rank ends that somebody else ends; each is a failure of its own without an end from outside.
_POSSIBLE_CONSEQUENCES = frozenset({
    "exit", "killed", "aborted", "terminated", "crashed", "exception", "data_error", "segfault",
    "bus_error", "gloo_closed", "nccl_remote", "store_lost", "taken_down", "nccl_timeout",
    "nccl_system", "ib_error", "hidden_cause", "bad_input",
})  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Classification:
    """What became of a job.

    Attributes:
        cause_ranks: empty where no rank is to blame or none is known.
        evidence: what was found, the deciding first.
        exception: what ended the rank to blame, with its place; None where none is known.
        followers: ranks that failed after it; empty where no rank is to blame.
    """

    outcome: vocabulary.Outcome
    failure_class: vocabulary.FailureClass | None
    cause: str
    blame: vocabulary.Verdict
    reason: str
    cause_ranks: tuple[int, ...] = ()
    cause_node: str | None = None
    evidence: tuple[str, ...] = ()
    exception: str | None = None
    signal: str | None = None
    followers: tuple[int, ...] = ()
    last_step: int | None = None

    def event_fields(self) -> dict[str, Any]:
        """The fields of ``attempt_ended`` and ``job_finished`` that it gives."""
        fields: dict[str, Any] = {
            "outcome": self.outcome,
            "cause": self.cause,
            "reason": self.reason,
            "cause_ranks": list(self.cause_ranks),
        }
        for name in ("failure_class", "cause_node", "exception", "signal", "last_step"):
            if (value := getattr(self, name)) is not None:
                fields[name] = value
        if self.followers:
            fields["followers"] = list(self.followers)
        return fields


def classify(evidence: Evidence) -> Classification:
    """The first rule of the table that the evidence fulfils."""
    found = signs_of(evidence)
    signs = _drop_consequences(found, evidence)
    # A consequence decides nothing, and still tells that not all went well.
    names = {sign.name for sign in found}
    for rule in RULES:
        matched = [sign for sign in signs if sign.name in rule.signs]
        if (matched or not rule.signs) and _holds(rule, matched, names, evidence):
            return _classification(rule, matched, signs, evidence)
    raise AssertionError("the last rule holds always")


def _drop_consequences(signs: list[Sign], evidence: Evidence) -> list[Sign]:
    """The signs, without those that an end from outside, or of another rank, explains."""
    signs = _drop_survived(signs, evidence)
    outside = [sign for sign in signs if sign.name in OUTSIDE_SIGNS]
    if not outside:
        return signs
    times = [sign.time for sign in outside]
    end = None if None in times else min(time for time in times if time is not None)
    return [sign for sign in signs if not _follows(sign, end)]


def _drop_survived(signs: list[Sign], evidence: Evidence) -> list[Sign]:
    """The signs, without what ranks printed that did not fail, and kills of those that remained.

    A rank that ended well, gave way or was ended has survived what it printed. A launcher that
    takes a job down kills what does not follow SIGTERM.
    """
    exits = {rank: sign.name for sign in signs if sign.source == "exit" for rank in sign.ranks}
    hung = {end.rank for end in evidence.ranks if _stood_still(end)}
    survivors = {rank for rank, name in exits.items() if name in _ENDED_WELL} - hung
    first_exits = {exits.get(end.rank) for end in evidence.ranks if end.first}
    killed_last = bool(first_exits) and "killed" not in first_exits
    return [
        sign
        for sign in signs
        if not (sign.source == "output" and sign.name != "success" and survivors & set(sign.ranks))
        and not (killed_last and sign.name == "killed" and sign.source == "exit")
    ]


def _stood_still(end: RankEnd) -> bool:
    """Whether a rank did nothing in work of its own for long before it was ended.

    It did not survive what it printed: it is what the others waited for.
    """
    is_at_work = end.phase not in {None, "sync", *vocabulary.ENDED_PHASES, *vocabulary.PAUSE_PHASES}
    return is_at_work and end.idle_seconds is not None and end.idle_seconds > _STANDING_SECONDS


def _follows(sign: Sign, outside_time: float | None) -> bool:
    """Whether a sign may follow from an end from outside at a time, which may be unknown."""
    if sign.name not in _POSSIBLE_CONSEQUENCES:
        return False
    if outside_time is None or sign.time is None:
        return True
    return sign.time > outside_time - _SLACK_SECONDS


def _holds(rule: Rule, matched: list[Sign], names: set[str], evidence: Evidence) -> bool:
    if rule.also and not names & set(rule.also):
        return False
    if names & set(rule.unless):
        return False
    if rule.extent == "any":
        return True
    ranks = {rank for sign in matched for rank in sign.ranks}
    return bool(ranks) and ranks >= {end.rank for end in evidence.ranks}


def _classification(
    rule: Rule, matched: list[Sign], signs: list[Sign], evidence: Evidence
) -> Classification:
    deciding = _deciding(matched, evidence)
    ranks = tuple(sorted({rank for sign in deciding for rank in sign.ranks}))
    node = next((sign.node for sign in deciding if sign.node), None)
    blame, failure_class = rule.blame, rule.failure_class
    if blame in {"rank", "group"} and _are_most(ranks, evidence):
        blame, ranks_text = "workload", " on most ranks alike"
        # What every rank does alike is in the program, unless the table knows better.
        failure_class = "user" if failure_class == "unknown" else failure_class
        if rule.name == "killed":
            blame, failure_class = "unknown", "unknown"
        named: tuple[int, ...] = ()
    elif blame in {"rank", "group"}:
        named = ranks
        blame = blame if ranks or (blame == "group" and node) else "unknown"
        ranks_text = f" on rank {rank_list(ranks)}" if ranks else ""
    else:
        named, ranks_text = (), ""
    also = next((sign for sign in signs if sign.name in rule.also), None)
    return Classification(
        outcome=rule.outcome,
        failure_class=failure_class,
        cause=rule.name,
        blame=blame,
        reason=rule.reason.format(
            ranks=ranks_text,
            Ranks=f"Rank {rank_list(ranks)} was" if named else "Ranks were",
            sign=printable(deciding[0].text, _MAX_TEXT).rstrip(".") if deciding else "",
            also=printable(also.text, _MAX_TEXT) if also else "",
        ),
        cause_ranks=named,
        cause_node=node if blame in {"rank", "group"} else None,
        evidence=_evidence((*deciding, *matched, *signs)),
        last_step=max(
            (e.last_step for e in evidence.ranks if e.last_step is not None), default=None
        ),
        **_describe_cause(rule, named, deciding, evidence),
    )


def _describe_cause(
    rule: Rule, named: tuple[int, ...], deciding: list[Sign], evidence: Evidence
) -> dict[str, Any]:
    """What ended the rank to blame, and who followed it; empty where nothing failed."""
    if rule.outcome != "failed":
        return {}
    end = next((e for e in evidence.ranks if e.rank in named), None)
    sign = deciding[0] if deciding else None
    exception = end.exception if end is not None else None
    # All ranks failed alike: the exception of the first describes all.
    if sign is not None and sign.source == "exception" and exception is None:
        exception = next((e.exception for e in evidence.ranks if e.rank in sign.ranks), None)
    failed = {e.rank for e in evidence.ranks if e.exit_code not in {None, 0} or e.phase == "failed"}
    return {
        "exception": None if exception is None else printable(exception, _MAX_TEXT),
        "signal": signal_name(end.exit_code) if end is not None and end.exit_code else None,
        "followers": tuple(sorted(failed - set(named))) if named else (),
    }


def _deciding(matched: list[Sign], evidence: Evidence) -> list[Sign]:
    """The matched signs that share kind and key with the earliest failure, on any rank."""
    if not matched:
        return []
    first_ranks = {end.rank for end in evidence.ranks if end.first}
    first = next((sign for sign in matched if first_ranks & set(sign.ranks)), None)
    if first is None and all(sign.time is not None for sign in matched):
        first = min(matched, key=lambda sign: sign.time or 0.0)
    first = first or matched[0]
    same = [sign for sign in matched if (sign.name, sign.key) == (first.name, first.key)]
    # A status tells nothing of why: of several ranks with the same, the first is named.
    if first.name == "exit" and first_ranks and not _are_most(_ranks(same), evidence):
        same = [sign for sign in same if first_ranks & set(sign.ranks)]
    return [first, *(sign for sign in same if sign is not first)]


def _ranks(signs: Iterable[Sign]) -> tuple[int, ...]:
    return tuple(sorted({rank for sign in signs for rank in sign.ranks}))


def _are_most(ranks: tuple[int, ...], evidence: Evidence) -> bool:
    """Whether more than half of the ranks show it, and more than one does."""
    total = max(len({end.rank for end in evidence.ranks}), 1)
    return len(ranks) > 1 and len(ranks) > _MOST * total


def _evidence(signs: Iterable[Sign]) -> tuple[str, ...]:
    texts = dict.fromkeys(
        f"{sign.source}: {printable(sign.text, _MAX_TEXT)}"
        + (f" (rank {rank_list(sign.ranks)})" if sign.ranks else "")
        for sign in signs
        if sign.text
    )
    return tuple(texts)[:_MOST_EVIDENCE]
