"""Puts a document next to another one: a run before, or the steps before the window."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_reports.analysis.compare import Change, measure_change
from lockstep_reports.document.model import Document, Row, Section, Table
from lockstep_reports.document.published import Compared
from lockstep_reports.verdict.verdict import Verdict
from lockstep_reports.wording import UNKNOWN, duration, percent

_HINT = (
    "Bold: the interval excludes no change. Effect is Cliff's delta: 1 when every step took longer"
    " than before, 0 when longer and shorter are equally likely."
)


def compare(after: Document, before: Document, against: str) -> Document:
    """The document with what changed from the other one, named ``against``."""
    old, new = before.durations, after.durations
    # In the order of a step, so that two comparisons read alike.
    names = ["step", *(phase for phase in STEP_PHASES if phase in old or phase in new)]
    nothing = np.zeros(0)
    # Reports of two kinds have different figures: the union, in order.
    figures = {
        name: {"before": before.key_figures.get(name), "after": after.key_figures.get(name)}
        for name in dict.fromkeys([*before.key_figures, *after.key_figures])
    }
    compared = Compared(
        against=against,
        verdict_changed=_slow_ranks(before.published.verdict)
        != _slow_ranks(after.published.verdict),
        verdict_before=before.published.verdict,
        changes=tuple(measure_change(n, old.get(n, nothing), new.get(n, nothing)) for n in names),
        figures=figures,
    )
    section = _describe(compared, after.published.verdict)
    return replace(
        after,
        sections=(*after.sections, section),
        published=replace(after.published, comparison=compared),
    )


def _slow_ranks(verdict: Verdict) -> tuple[object, ...]:
    # Confidence and evidence differ between any two runs, so they do not count.
    return verdict.kind, verdict.ranks, verdict.group, verdict.phase


def _describe(compared: Compared, verdict: Verdict) -> Section:
    sentences: tuple[str, ...] = (_describe_step(compared),)
    if compared.verdict_changed:
        was, now = compared.verdict_before.kind, verdict.kind
        sentences += (f"The verdict was {was} before, and is {now} now.",)
    return Section(
        title=f"Against {compared.against}",
        hint=_HINT,
        blocks=(sentences, _tabulate_changes(compared.changes), _tabulate_figures(compared)),
    )


def _tabulate_changes(changes: Sequence[Change]) -> Table:
    columns = ("median of", "before", "after", "difference", "95 % interval", "effect")
    rows = (
        Row(
            (
                change.what, duration(change.before_seconds), duration(change.after_seconds),
                _sign(change.difference_seconds),
                UNKNOWN if change.low_seconds is None
                else f"{_sign(change.low_seconds)} to {_sign(change.high_seconds)}",
                UNKNOWN if change.effect is None else f"{change.effect:+.2f}",
            ),
            is_marked=change.is_sure,
        )
        for change in changes
    )  # fmt: skip
    return Table(columns, tuple(rows), 1)


def _tabulate_figures(compared: Compared) -> Table:
    rows = (
        Row((name.replace("_", " "), *(_format_figure(name, sides[s]) for s in sides)))
        for name, sides in compared.figures.items()
        if any(value is not None for value in sides.values())
    )
    return Table(("figure", "before", "after"), tuple(rows), 1)


def _format_figure(name: str, value: float | None) -> str:
    if name.endswith("_ratio"):
        return percent(value)
    if "seconds" in name:
        return duration(value)
    return UNKNOWN if value is None else f"{value:,.4g}"


def _describe_step(compared: Compared) -> str:
    step = compared.changes[0]
    if step.difference_seconds is None or step.ratio is None:
        return "How long a step took cannot be compared."
    direction = "longer" if step.difference_seconds > 0 else "shorter"
    sentence = (
        f"A step took {duration(step.after_seconds)}, {percent(abs(step.ratio - 1))} {direction}"
        f" than in {compared.against} ({duration(step.before_seconds)})"
    )
    if step.low_seconds is None or step.high_seconds is None:
        return f"{sentence}; too few steps to say how surely."
    doubt = "" if step.is_sure else ", which leaves room for no change"
    interval = f"{_sign(step.low_seconds)} to {_sign(step.high_seconds)}"
    return f"{sentence}; 95 % interval of the difference {interval}{doubt}."


def _sign(seconds: float | None) -> str:
    if seconds is None:
        return UNKNOWN
    return ("+" if seconds > 0 else "") + duration(seconds)
