"""Holds a report against the truth of its recording: who, where, since when, and what was lost."""

import contextlib
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep_reports.readers import ReadOptions, read_source
from lockstep_reports.recording.recording import Recording, Window, cut_inside, parse_bound
from lockstep_reports.render import json_text, terminal
from lockstep_reports.report import make_document

_SHARE_TOLERANCE = 0.02
"""Of the run, by which a share of lost time may be off."""
_SUM_TOLERANCE = 1e-3
_ONSET_STEPS, _ONSET_SHARE = 5, 0.02
_LEAST_COST_SHARE = 0.1
"""Of the dearest episode; one that lost less has no part in the onset."""
_NAMING = ("rank", "group")


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What is true of a recording.

    Attributes:
        ranks: who is to be named; nobody if empty.
        may: who may be named too; None for anybody.
        phase: in which they are slow; None where that is open.
        first, until: steps in which they are; None where that is open.
        kinds: verdicts that are right as well where nobody is to be named.
        says: patterns, each of which the first lines match.
        never: patterns that nothing of the report matches.
        lost: shares of the run that others waited, by owner; None where that is open.
        causes: what a report calls the cause of each owner's time.
        total: the same of all owners together.
        noise: share that a healthy run loses too.
    """

    ranks: tuple[int, ...] = ()
    may: tuple[int, ...] | None = ()
    phase: str | None = None
    first: int | None = None
    until: int | None = None
    kinds: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    lost: Mapping[str, float] | None = None
    causes: Mapping[str, str] = field(default_factory=dict)
    total: float = 0.0
    noise: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What a report says: the verdict, the named ranks, and mistakes by their kind."""

    wrong: Mapping[str, str]
    answer: str
    headline: str = ""
    lost: float | None = None
    named: tuple[int, ...] = field(default=())


def judge_file(path: Path, truth: Truth, window: tuple[int, int] | None = None) -> Judged:
    """Makes the report on a recording as ``lockstep report`` does, and judges it."""
    recording = read_source(str(path), ReadOptions())
    if window is not None:
        assert isinstance(recording, Recording)
        first, last = (parse_bound(str(step), 0.0) for step in window)
        recording = cut_inside(recording, Window(first, last))
    document = make_document(recording)
    report: dict[str, Any] = json.loads(json_text.render(document, Path("-")))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        terminal.show(document)
    return judge(report, printed.getvalue(), truth)


def judge(report: dict[str, Any], text: str, truth: Truth) -> Judged:
    wrong = {
        "who": _wrong_ranks(report["verdict"], truth),
        "phase": _wrong_phase(report["verdict"], truth),
        "since": _wrong_onset(report, truth),
        "words": _wrong_words(text, truth),
        "lost": _wrong_share(report, truth),
    }
    verdict = report["verdict"]
    ranks = ", ".join(map(str, verdict["ranks"][:4])) + ("..." if len(verdict["ranks"]) > 4 else "")
    parts = (verdict["kind"], ranks, verdict["phase"], verdict["cause"])
    is_named = report["severity"] == "slow" and verdict["kind"] in _NAMING
    return Judged(
        wrong={kind: why for kind, why in wrong.items() if why},
        answer=" ".join(filter(None, parts)),
        headline=report["headline"],
        lost=report.get("lost_ratio"),
        named=tuple(verdict["ranks"]) if is_named else (),
    )


def _wrong_ranks(verdict: dict[str, Any], truth: Truth) -> str:
    kind, ranks = verdict["kind"], set(verdict["ranks"])
    is_right = ranks >= set(truth.ranks)
    if truth.may is not None:
        is_right = is_right and ranks <= {*truth.ranks, *truth.may}
    if not truth.ranks and truth.may == ():
        is_right = kind not in {*_NAMING, "workload", "unknown"} - set(truth.kinds)
    return "" if is_right else f"{kind} {sorted(ranks)} for {truth.ranks or truth.may or 'nobody'}"


def _wrong_phase(verdict: dict[str, Any], truth: Truth) -> str:
    if truth.phase is None or not truth.ranks or verdict["phase"] == truth.phase:
        return ""
    return f"{verdict['phase']} for {truth.phase}"


def _wrong_onset(report: dict[str, Any], truth: Truth) -> str:
    """The dear episodes of the ranks begin and end where the fault does."""
    found = [e for e in report.get("episodes", ()) if set(e["ranks"]) & set(truth.ranks)]
    if truth.first is None or not found:
        return ""
    least = _LEAST_COST_SHARE * max(e["lost_seconds"] for e in found)
    dear = [e for e in found if e["lost_seconds"] >= least]
    tolerance = max(_ONSET_STEPS, _ONSET_SHARE * report["steps"]["count"])
    begin, end = min(e["start_step"] for e in dear), max(e["end_step"] for e in dear)
    if abs(begin - truth.first) > tolerance:
        return f"from {begin} for {truth.first}"
    if truth.until is not None and abs(end + 1 - truth.until) > tolerance:
        return f"up to {end} for {truth.until - 1}"
    return ""


def _first_lines(text: str) -> str:
    """What stands before the first table, as one line."""
    return re.sub(r"[\s│╭╮╰╯─]+", " ", text.split("┏", maxsplit=1)[0])


def _wrong_words(text: str, truth: Truth) -> str:
    first_lines = _first_lines(text)
    missing = [f"no {p!r}" for p in truth.says if not re.search(p, first_lines, re.IGNORECASE)]
    sentences = re.sub(r"\s+", " ", text)
    untrue = [f"says {p!r}" for p in truth.never if re.search(p, sentences, re.IGNORECASE)]
    return "; ".join([*missing, *untrue])


def _wrong_share(report: dict[str, Any], truth: Truth) -> str:
    lost = report.get("lost_ratio")
    if truth.lost is None:
        return ""
    planted = truth.total
    if lost is None:
        return f"none of {planted:.1%}" if planted > _SHARE_TOLERANCE else ""
    low, high = planted - _SHARE_TOLERANCE, planted + truth.noise + _SHARE_TOLERANCE
    wrong = [] if low <= lost <= high else [f"{lost:.1%} of {planted:.1%}"]
    losses = report.get("losses", ())
    if losses and abs(sum(row["lost_ratio"] for row in losses) - lost) > _SUM_TOLERANCE:
        wrong.append("the parts are not the sum")
    # Two owners in one step are both what the run would be shorter by, or neither.
    shared = abs(sum(truth.lost.values()) - planted)
    for owner, cause in truth.causes.items() if losses else ():
        share = sum(row["lost_ratio"] for row in losses if row["cause"] == cause)
        tolerance = _SHARE_TOLERANCE + shared
        if not -tolerance <= share - truth.lost[owner] <= tolerance + truth.noise:
            wrong.append(f"{owner} {share:.1%} of {truth.lost[owner]:.1%}")
    return ", ".join(wrong)
