"""Counts incidents, each once however many messages report it, and keeps the newest."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from lockstep_catalogue import METRICS_NAMED, Metric, incidents
from lockstep_records.kernel.lines import Message
from lockstep_records.kernel.patterns import (
    Finding,
    FirmwareRecord,
    event_of,
    is_same_event,
    match_message,
)

# a log can hold any number of addresses: without a bound a damaged one would fill the memory
_MAX_COUNTERS = 1000
_MAX_OPEN = 5000
_MAX_RECENT = 200
_LONGEST_QUIET_SECONDS = 300.0
_LOG_DELAY_SECONDS = 60.0  # longest delay of a log's message behind the driver's event
_ECHO_SECONDS = 5.0
NVML_EVENTS = "nvml"

Counter = tuple[str, tuple[str, ...]]
"""Name and label values of a counter."""


@dataclass(slots=True)
class Count:
    """Number of incidents of one kind, and the wall clock of the newest message of any of them."""

    number: int = 0
    last_wall_seconds: float | None = None


class Incidents:
    """Counters that never fall, and the newest incidents, oldest first; both can be restored.

    Messages are ``refused`` whose labels would exceed 1,000 counters.
    """

    def __init__(self) -> None:
        self.counts: dict[Counter, Count] = {
            (incidents.HOST_INCIDENTS.name, (value,)): Count()
            for value in incidents.HOST_INCIDENT.values
        }
        self.recent: deque[dict[str, Any]] = deque(maxlen=_MAX_RECENT)
        self.refused = 0
        self._open: dict[tuple[str, ...], tuple[float, int]] = {}
        self._next_id = 0
        self._firmware = FirmwareRecord()

    def ingest(self, log: str, messages: Iterable[Message]) -> None:
        """Counts what new messages of a log tell.

        Of one event the specific line counts, in whichever order the kernel wrote them.
        """
        general: list[tuple[Finding, Message]] = []
        for message in messages:
            finding = match_message(log, self._firmware.feed(message.text))
            if finding and (finding.echo_of or finding.event):
                general.append((finding, message))
            elif finding:
                self.add(log, finding, message)
        for each in general:
            self.add(log, *each)

    def add(self, log: str, finding: Finding, message: Message) -> None:
        """Counts a finding as a new incident or as one more message of an ongoing one."""
        counter = (finding.metric.name, finding.labels)
        if counter not in self.counts and len(self.counts) >= _MAX_COUNTERS:
            self.refused += 1
            return
        count = self.counts.setdefault(counter, Count())
        count.last_wall_seconds = max(count.last_wall_seconds or 0.0, message.wall_seconds)
        key = (log, *finding.key)
        ongoing = self._open.pop(key, None)
        if ongoing is not None and not _is_within(message.seconds, ongoing, finding.quiet_seconds):
            ongoing = None
        number = ongoing[1] if ongoing else self._next_id
        self._open[key] = (message.seconds, number)
        if ongoing:
            self._extend(number, message)
            return
        self._trim(message.seconds)
        is_new = not (
            self._is_echo(log, finding, message) or self._has_counted_event(log, finding, message)
        )
        count.number += is_new
        self._record(log, finding, message, is_counted=is_new)

    def forget_open(self) -> None:
        """Ends every incident, for a node that was started anew, and its log with it."""
        self._open.clear()

    def counts_of(self, metric: Metric) -> Iterator[tuple[tuple[str, ...], Count]]:
        """Label values and count of each counter of a metric."""
        for (name, labels), count in self.counts.items():
            if name == metric.name:
                yield labels, count

    def as_json(self) -> dict[str, Any]:
        """The entire state as lists and numbers for JSON."""
        return {
            "counts": [
                [name, list(labels), count.number, count.last_wall_seconds]
                for (name, labels), count in self.counts.items()
            ],
            "open": [[list(key), *value] for key, value in self._open.items()],
            "recent": list(self.recent),
            "next_id": self._next_id,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that ``as_json`` returned; KeyError, TypeError or ValueError."""
        for name, labels, number, last in state["counts"]:
            metric = METRICS_NAMED[str(name)]
            values = tuple(map(str, labels))
            if len(values) != len(metric.labels):
                raise ValueError(f"{name} has other labels now")
            wall_seconds = None if last is None else float(last)
            self.counts[(metric.name, values)] = Count(int(number), wall_seconds)
        for key, seconds, number in state["open"]:
            self._open[tuple(map(str, key))] = (float(seconds), int(number))
        self.recent.extend(dict(incident) for incident in state["recent"])
        self._next_id = int(state["next_id"])

    def is_recent_xid(self, address: str, number: str, wall_seconds: float) -> bool:
        """Whether any log reported this Xid of a GPU, or its event, within the quiet time."""
        numbers = {number, *event_of(number)}
        return any(
            name == incidents.GPU_XID_INCIDENTS.name
            and labels[0] == address
            and labels[2].removesuffix(incidents.NONFATAL) in numbers
            and abs((count.last_wall_seconds or 0.0) - wall_seconds) <= _LONGEST_QUIET_SECONDS
            for (name, labels), count in self.counts.items()
        )

    def is_ongoing(self, log: str, finding: Finding, seconds: float) -> bool:
        """Whether the incident of a finding is open at a time of the log's clock."""
        ongoing = self._open.get((log, *finding.key))
        return ongoing is not None and _is_within(seconds, ongoing, finding.quiet_seconds)

    def _is_echo(self, log: str, finding: Finding, message: Message) -> bool:
        """Whether an incident is ongoing that tells of the same event."""
        own = (log, *finding.key)
        return any(
            key != own
            and key[0] == log
            and _is_within(message.seconds, ongoing, max(finding.quiet_seconds, _ECHO_SECONDS))
            and (
                any(_begins(key[1:], begin) for begin in finding.echo_of)
                or (
                    bool(finding.event)
                    and key[1:3] == ("xid", finding.labels[0])
                    and is_same_event(key[4], finding.event)
                )
            )
            for key, ongoing in self._open.items()
        )

    def _has_counted_event(self, log: str, finding: Finding, message: Message) -> bool:
        """Whether the driver's event of the same Xid came first and was counted."""
        if finding.metric is not incidents.GPU_XID_INCIDENTS or log == NVML_EVENTS:
            return False
        address, plain = finding.labels[0], finding.labels[2].removesuffix(incidents.NONFATAL)
        for key, (wall_seconds, _) in self._open.items():
            is_same_xid = key[:3] == (NVML_EVENTS, "xid", address) and key[4] == plain
            if is_same_xid and abs(message.wall_seconds - wall_seconds) <= _LOG_DELAY_SECONDS:
                # an event names no process: it represents one of several processes' incidents
                del self._open[key]
                return True
        return False

    def _trim(self, seconds: float) -> None:
        """Forgets incidents that no message can extend any more, oldest first."""
        if len(self._open) > _MAX_OPEN:
            extensible = {
                key: ongoing
                for key, ongoing in self._open.items()
                if _is_within(seconds, ongoing, _LONGEST_QUIET_SECONDS)
            }
            self._open = dict(list(extensible.items())[-_MAX_OPEN // 2 :])

    def _record(self, log: str, finding: Finding, message: Message, *, is_counted: bool) -> None:
        names = finding.metric.label_names
        self.recent.append(
            {
                "id": self._next_id,
                "log": log,
                "metric": finding.metric.name,
                "labels": dict(zip(names, finding.labels, strict=True)),
                "facts": finding.facts,
                "text": message.text,
                "first_seconds": message.wall_seconds,
                "last_seconds": message.wall_seconds,
                "messages": 1,
                "counted": is_counted,
            }
        )
        self._next_id += 1

    def _extend(self, number: int, message: Message) -> None:
        for incident in reversed(self.recent):
            if incident["id"] == number:
                incident["last_seconds"] = max(incident["last_seconds"], message.wall_seconds)
                incident["messages"] += 1
                return


def _is_within(seconds: float, ongoing: tuple[float, int], quiet_seconds: float) -> bool:
    """Whether a time is within the quiet time of an incident's last message."""
    return abs(seconds - ongoing[0]) <= quiet_seconds


def _begins(key: tuple[str, ...], begin: tuple[str, ...]) -> bool:
    return len(key) >= len(begin) and all(b in {"", k} for k, b in zip(key, begin, strict=False))
