"""What people should hear of a situation, and what of that they do not hear, late, or falsely."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from alerts.situations.expand import Paging, build_read, run_ruler, through_alertmanager
from lockstep_alerts.stack.servers import RESEND_SECONDS

from .world import World

SCRAPE = 60.0
GAP_SECONDS = 300.0  # an alert that is back within the group's interval notifies nobody anew
VALID_SECONDS = 4 * RESEND_SECONDS
"""How long an alert of a Prometheus that is away stands in Alertmanager."""
Key = tuple[str, ...]


NOT_PROGRESSING = "JobNotProgressing"
TICKET = "ticket"  # anything below a page, the owner's alerts too
NOTICE = "notice"  # a page or a ticket: somebody hears of it


@dataclass(frozen=True)
class Expectation:
    """One notification about an object.

    Attributes:
        kinds: names of pages any of which is right, or ``TICKET``, or ``NOTICE``.
        about: labels of the notification, such as ``{"job_id": "A"}``.
        at: minute in which the loss begins; nothing may be notified before it.
        within: minutes after it until which the notification comes.
    """

    kinds: tuple[str, ...]
    about: dict[str, str]
    at: float
    within: float


@dataclass(frozen=True)
class Case:
    """A situation and all that people may hear of it.

    Attributes:
        hours: length.
        expectations: the notifications that come, each once; no page comes beside them.
        is_quiet: whether no ticket either comes beside them.
        is_ordinary: whether it is a day on which nobody may be woken.
    """

    name: str
    world: World
    hours: float
    expectations: Sequence[Expectation] = ()
    is_quiet: bool = False
    is_ordinary: bool = True


def _read(name: str, entry: Mapping[str, Any], *, is_ordinary: bool) -> Case:
    world = World(**entry.get("world", {}))
    for verb, *arguments in entry.get("do", ()):
        named = arguments.pop() if arguments and isinstance(arguments[-1], dict) else {}
        getattr(world, verb)(*arguments, **named)
    expectations = [
        Expectation((kinds,) if isinstance(kinds, str) else tuple(kinds), about, at, within)
        for kinds, about, at, within in entry.get("hear", ())
    ]
    is_quiet = entry.get("is_quiet", False)
    return Case(name, world, entry.get("hours", 2), expectations, is_quiet, is_ordinary)


def read_cases() -> list[Case]:
    """The situations of ``situations.yaml``."""
    text = Path(__file__).with_name("situations.yaml").read_text(encoding="utf-8")
    return [
        _read(name, entry, is_ordinary=day == "ordinary")
        for day, entries in yaml.load(text, yaml.CSafeLoader).items()
        for name, entry in entries.items()
    ]


@dataclass(frozen=True)
class Heard:
    """A notification as the phone shows it: once, from its begin to its end."""

    begin: float
    end: float
    kind: str
    labels: Mapping[str, str]

    @property
    def group(self) -> Key:
        """What Alertmanager groups pages by: a job, and otherwise an alert."""
        job = self.labels.get("incident") or self.labels.get("job_id")
        return (self.labels.get("cluster", ""), job or self.labels["alertname"])

    def __str__(self) -> str:
        about = [self.labels[name] for name in ("cluster", "job_id", "node") if name in self.labels]
        return f"{self.labels['alertname']} ({', '.join(about)}) at {self.begin / 60:g} m"


def firing_of(case: Case, paging: Paging) -> dict[float, list[dict[str, str]]]:
    """The alerts that fire in the situation, by second."""
    length, world = case.hours * 3600, case.world
    series = build_read(world.situation(case.name, case.hours), SCRAPE, length, paging)
    return run_ruler(world.scraped(series), SCRAPE, length, paging)


def heard(case: Case, firing: Mapping[float, list[dict[str, str]]], paging: Paging) -> list[Heard]:
    """What is notified, less what somebody has silenced, each alert once while it lasts."""
    silenced: dict[Key, float] = {}
    for minute in case.world.silences:
        for alert in firing.get(minute * 60, ()):
            silenced.setdefault(_key(alert), minute * 60)
    found: dict[Key, list[Heard]] = {}
    for each in through_alertmanager(firing, paging, SCRAPE):
        key = _key(each.labels)
        if each.time >= silenced.get(key, float("inf")):
            continue
        runs = found.setdefault(key, [])
        if runs and _is_one(runs[-1].end, each.time, firing):
            runs[-1] = replace(runs[-1], end=each.time)
        else:
            runs.append(Heard(each.time, each.time, each.kind, each.labels))
    return sorted((run for runs in found.values() for run in runs), key=lambda run: run.begin)


def _is_one(end: float, begin: float, evaluated: Iterable[float]) -> bool:
    """Whether an alert that is back was never gone for those who are notified."""
    quiet = sum(end < time < begin for time in evaluated) * SCRAPE
    away = begin - end - SCRAPE - quiet
    return quiet + SCRAPE <= GAP_SECONDS and away <= VALID_SECONDS


@dataclass(frozen=True)
class Verdict:
    """How what was heard differs from what should be: unmet expectations, each with a sentence."""

    unmet: Sequence[tuple[Expectation, str]]
    false_pages: Sequence[Heard]
    false_tickets: Sequence[Heard]

    @property
    def sentences(self) -> list[str]:
        return [
            *(text for _, text in self.unmet),
            *(f"pages falsely: {run}" for run in self.false_pages),
            *(f"opens a false ticket: {run}" for run in self.false_tickets),
        ]


def judged(case: Case, runs: Sequence[Heard]) -> Verdict:
    """What is silent, late, twice, or heard by nobody's wish."""
    unmet: list[tuple[Expectation, str]] = []
    explained: set[int] = set()
    for expected in case.expectations:
        unmet += ((expected, text) for text in _missing(expected, runs, explained))
    right = [run for run in runs if id(run) in explained]
    surplus = [run for run in runs if id(run) not in explained]
    # A page of the same job while one stands is its next state, and no second incident.
    pages = [
        run for run in surplus
        if run.kind == "pages" and not any(_continues(run, each) for each in right)
    ]  # fmt: skip
    tickets = [run for run in surplus if run.kind == "tickets" and case.is_quiet]
    return Verdict(unmet, pages, tickets)


def _missing(expected: Expectation, runs: Sequence[Heard], explained: set[int]) -> Iterable[str]:
    matching = [run for run in runs if _is_about(run, expected) and _is_of_kind(run, expected)]
    begin, deadline = expected.at * 60, (expected.at + expected.within) * 60
    in_time = [run for run in matching if begin <= run.begin <= deadline]
    later = [run for run in matching if run.begin > deadline]
    name = f"{'|'.join(expected.kinds)} {expected.about or ''}".strip()
    if not in_time:
        explained.update(id(run) for run in later[:1])
        yield f"{name} comes late: {later[0]}" if later else f"{name} does not come"
        return
    explained.update(id(run) for run in matching if run.begin >= begin and run.kind == "tickets")
    of_pages = [run for run in in_time if run.kind == "pages"]
    may_be_many = not expected.about and NOT_PROGRESSING in expected.kinds
    explained.update(id(run) for run in (of_pages if may_be_many else of_pages[:1]))


def _continues(run: Heard, other: Heard) -> bool:
    return run.group == other.group and other.begin - GAP_SECONDS <= run.begin <= other.end


def _is_about(run: Heard, expected: Expectation) -> bool:
    for name, value in expected.about.items():
        label = run.labels.get(name, "")
        if name == "node" and not label:
            label = run.labels.get("instance", "").partition(":")[0]
        if label != value:
            return False
    return True


def _is_of_kind(run: Heard, expected: Expectation) -> bool:
    if NOTICE in expected.kinds:
        return True
    if TICKET in expected.kinds or run.kind == "tickets":
        return TICKET in expected.kinds and run.kind == "tickets"
    return any(run.labels["alertname"].endswith(kind) for kind in expected.kinds)


def _key(labels: Mapping[str, str]) -> Key:
    return tuple(f"{name}={value}" for name, value in sorted(labels.items()))
