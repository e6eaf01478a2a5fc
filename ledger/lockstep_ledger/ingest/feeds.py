"""Reports of schedulers' feeds on themselves, with each delivery: how far they are."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from lockstep_catalogue import feeds

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
    """One report of a feed: until when it has asked, and counts since its last one.

    Attributes:
        waiting: events that the ledger has not answered yet.
        kinds: of objects that it follows, by PLURAL.GROUP.
    """

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
