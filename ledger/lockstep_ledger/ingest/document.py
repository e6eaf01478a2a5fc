"""Checks a delivery (docs/formats/event-delivery.md): its frame, then each event by itself."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from lockstep_catalogue import feeds
from lockstep_ledger.ingest.speakers import OPERATOR, Speaker
from lockstep_ledger.merge.precedence import body_of
from lockstep_records.events.bounds import EventError, is_printable
from lockstep_records.events.event import Event, check_event
from lockstep_records.events.kinds import LAST_TIME
from lockstep_records.text.documents import DocumentError, decode_json

_MAX_CLUSTERS = 100
_MAX_KINDS = 200
_Number = Annotated[float, Meta(ge=0, lt=1e12)]
_KindName = Annotated[str, Meta(pattern=r"^[a-z0-9.-]{1,253}$")]
_COUNTED = {
    "left_out": (feeds.LEFT_OUT.name, ()),
    "workloads_left_out": (feeds.WORKLOADS_LEFT_OUT.name, ()),
    "delivered": (feeds.EVENTS.name, ("delivered",)),
    "refused": (feeds.EVENTS.name, ("refused",)),
}


class KindReport(msgspec.Struct, frozen=True):
    """How a feed sees one kind of objects: its state, and when the server last answered."""

    state: Literal["listing", "followed", "refused", "away", "absent"]
    contact: _Number


class FeedReport(msgspec.Struct, frozen=True):
    """A feed's report: until when it has asked, counts since its last, kinds by PLURAL.GROUP."""

    source: Literal["slurm", "kubernetes"]
    time: _Number
    left_out: _Number
    workloads_left_out: _Number = 0.0
    delivered: _Number = 0.0
    refused: _Number = 0.0
    waiting: _Number = 0.0
    kinds: Annotated[dict[_KindName, KindReport], Meta(max_length=_MAX_KINDS)] = {}


def read_report(document: dict[str, Any], now_seconds: float) -> FeedReport | None:
    """The report in a delivery's frame; None without one, and for one that makes no sense."""
    try:
        report = msgspec.convert(document.get("feed"), FeedReport)
    except msgspec.ValidationError:
        return None
    return msgspec.structs.replace(report, time=min(report.time, now_seconds))


@dataclass(slots=True)
class Feeds:
    """The newest report of each cluster's feeds, and what they have counted since the start."""

    _newest: dict[tuple[str, str], FeedReport] = field(default_factory=dict)
    _counts: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)

    def take(self, cluster: str, report: FeedReport | None) -> None:
        """Adds a report; of clusters that nobody has counted yet the first hundred."""
        if report is None:
            return
        key = (cluster, report.source)
        if key in self._newest or len(self._newest) < _MAX_CLUSTERS:
            self._newest[key] = report
            counts = self._counts.setdefault(key, Counter())
            counts.update({name: getattr(report, name) for name in _COUNTED})

    def samples(self) -> dict[tuple[str, tuple[str, ...]], float]:
        """The series of a scrape."""
        samples: dict[tuple[str, tuple[str, ...]], float] = {}
        for key, newest in self._newest.items():
            samples[feeds.ASKED.name, key] = newest.time
            samples[feeds.WAITING.name, key] = newest.waiting
            for member, (name, labels) in _COUNTED.items():
                samples[name, (*key, *labels)] = self._counts[key][member]
            if newest.kinds:
                states = Counter[str](kind.state for kind in newest.kinds.values())
                for state in feeds.FOLLOWING.values:
                    samples[feeds.KINDS.name, (*key, state)] = states[state]
            for kind, report in newest.kinds.items():
                samples[feeds.CONTACT.name, (*key, kind)] = report.contact
        return samples


VERSION = 1
MAX_EVENTS = 1000
_MAX_EVENT_CHARACTERS = 65_536
CLOCK_SLACK_SECONDS = 2.0
"""A sender whose clock differs from the ledger's by more has the times of its events corrected."""


class DeliveryError(ValueError):
    """A request that is refused as a whole, by one of ``REFUSALS``; the text says what is right."""

    def __init__(self, refusal: str, sentence: str) -> None:
        super().__init__(sentence)
        self.refusal = refusal


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusedEvent:
    """One event that is refused: why, and what was sent; of equal ``once`` the first is kept."""

    refusal: str
    reason: str
    id: str | None = None
    job_id: str | None = None
    node: str | None = None
    body: str = ""
    once: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """The events of one request in their order, those that are refused, and a feed's report."""

    events: tuple[Event, ...]
    refused: tuple[RefusedEvent, ...]
    speaker: Speaker = OPERATOR
    feed: FeedReport | None = None


def read_delivery(
    body: bytes,
    now_seconds: float,
    speaker_of: Callable[[str, str], Speaker] = lambda c, n: replace(OPERATOR, cluster=c, node=n),
) -> Delivery:
    """Events of a request's body, as of whoever speaks; DeliveryError where the frame is none."""
    try:
        document = decode_json(body)
    except DocumentError as error:
        raise DeliveryError("json", f"the body is refused: {error}; send a JSON object") from error
    if not isinstance(document, dict):
        raise DeliveryError("type", "the body must be a JSON object with version and events")
    version = document.get("version")
    if version != VERSION or isinstance(version, bool):
        raise DeliveryError(
            "version", f"version {version!r:.80} of a delivery is unknown here; send {VERSION}"
        )
    speaker = speaker_of(_name(document, "cluster", "local"), _name(document, "node", ""))
    offset_seconds = _clock_offset(document.get("sent"), now_seconds)
    checked = list(_checked(_events_of(document), speaker, now_seconds, offset_seconds))
    return Delivery(
        events=tuple(event for event in checked if isinstance(event, Event)),
        refused=tuple(event for event in checked if isinstance(event, RefusedEvent)),
        speaker=speaker,
        feed=read_report(document, now_seconds) if speaker.may_feed else None,
    )


def _events_of(document: dict[str, Any]) -> list[Any]:
    events = document.get("events")
    if not isinstance(events, list):
        raise DeliveryError("missing", "events must be a list; docs/formats/events.md has theirs")
    if len(events) > MAX_EVENTS:
        raise DeliveryError("size", f"{len(events)} events are too many; send {MAX_EVENTS} at most")
    return events


def _name(document: dict[str, Any], member: str, default: str) -> str:
    name = document.get(member)
    if name is None:
        return default
    if not isinstance(name, str) or not is_printable(name):
        raise DeliveryError(
            "type", f"{member} {name!r:.80} must be a text of at most 200 printable characters"
        )
    return name


def _clock_offset(sent: object, now_seconds: float) -> float:
    """Seconds that the sender's clock is behind; 0 where it states no time, or is near enough."""
    if sent is None:
        return 0.0
    if isinstance(sent, bool) or not isinstance(sent, int | float) or not 0 <= sent <= LAST_TIME:
        raise DeliveryError("type", f"sent {sent!r:.80} must be the time of sending, since 1970")
    offset_seconds = now_seconds - sent
    return offset_seconds if abs(offset_seconds) > CLOCK_SLACK_SECONDS else 0.0


def _checked(
    documents: list[Any], speaker: Speaker, now_seconds: float, offset_seconds: float
) -> Iterator[Event | RefusedEvent]:
    for document in documents:
        try:
            yield _event(document, speaker, now_seconds, offset_seconds)
        except EventError as error:
            yield _refused(document, error, speaker)


def _event(document: Any, speaker: Speaker, now_seconds: float, offset_seconds: float) -> Event:
    event = check_event(document, now_seconds=now_seconds - offset_seconds)
    if objection := speaker.objection(event):
        raise EventError("scope", f"{objection} ({speaker})")
    checked = speaker.stamped(event, event.time + offset_seconds, now_seconds)
    if not is_printable(checked.source):
        raise EventError("value", f"node {checked.node!r} with launcher {event.launcher!r} must"
                         " have at most 200 characters")  # fmt: skip
    size = len(body_of(checked))
    if size > _MAX_EVENT_CHARACTERS:
        raise EventError("value", f"the event has {size} characters; {_MAX_EVENT_CHARACTERS} fit")
    return checked


def _refused(document: Any, error: EventError, speaker: Speaker) -> RefusedEvent:
    members = document if isinstance(document, dict) else {}
    # With its origin and its speaker it can be delivered again, and says no more than now.
    origin = {"cluster": speaker.cluster, "node": speaker.node}
    named = {**origin, **members, **speaker.signature()} if members else document
    names = (members.get("id"), members.get("job_id"))
    event_id, job_id = (n if isinstance(n, str) and is_printable(n) else None for n in names)
    return RefusedEvent(
        refusal=error.refusal,
        reason=str(error),
        id=event_id,
        job_id=job_id,
        node=speaker.node,
        body=_text_of(named),
    )


def _text_of(document: Any) -> str:
    try:
        return json.dumps(document)[:_MAX_EVENT_CHARACTERS]
    except RecursionError:
        return ""
