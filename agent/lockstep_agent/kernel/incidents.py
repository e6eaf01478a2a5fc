"""Counts incidents, each once however many messages tell of it, and remembers the newest."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lockstep_agent.kernel.finding import Finding
from lockstep_agent.sources.logs import Message
from lockstep_catalogue import METRIC_BY_NAME, Metric
from lockstep_catalogue.events import GPU_XID_INCIDENTS, HOST_INCIDENT, HOST_INCIDENTS

_MOST_COUNTERS = 1000
_MOST_OPEN = 5000
_MOST_RECENT = 200
_LONGEST_QUIET_SECONDS = 300.0
_LATEST_SECONDS = 60.0  # that a message of the log may come behind the driver's event
BY_EVENT = "nvml"

Counter = tuple[str, tuple[str, ...]]
"""Name and label values of a counter."""


@dataclass(slots=True)
class Count:
    """How many incidents, and when the newest message of any came, by the wall clock."""

    number: int = 0
    last_wall_seconds: float | None = None


class Incidents:
    """Counters and recent events; all of it can be written down and taken up again.

    Attributes:
        counts: by counter; they never fall.
        recent: the newest incidents, oldest first, as they are served in JSON.
        refused: incidents left out because a node cannot have so many different ones.
    """

    def __init__(self) -> None:
        self.counts: dict[Counter, Count] = {
            (HOST_INCIDENTS.name, (value,)): Count() for value in HOST_INCIDENT.values
        }
        self.recent: deque[dict[str, Any]] = deque(maxlen=_MOST_RECENT)
        self.refused = 0
        self._open: dict[tuple[str, ...], tuple[float, int]] = {}
        self._next_id = 0

    def add(self, log: str, finding: Finding, message: Message) -> None:
        """Takes in what a message tells."""
        counter = (finding.metric.name, finding.labels)
        if counter not in self.counts and len(self.counts) >= _MOST_COUNTERS:
            self.refused += 1
            return
        count = self.counts.setdefault(counter, Count())
        count.last_wall_seconds = max(count.last_wall_seconds or 0.0, message.wall_seconds)
        key = (log, *finding.key)
        known = self._open.pop(key, None)
        lasts = known is not None and abs(message.seconds - known[0]) <= finding.quiet_seconds
        number = known[1] if known and lasts else self._next_id
        self._open[key] = (message.seconds, number)
        if lasts:
            self._prolong(number, message)
            return
        self._trim(message.seconds)
        follows = self._follows(log, finding, message) or self._was_told(log, finding, message)
        if not follows:
            count.number += 1
        self._remember(log, finding, message, counted=not follows)

    def forget_open(self) -> None:
        """Ends every incident: the node was started anew, and its log with it."""
        self._open.clear()

    def told(self, metric: Metric) -> Iterator[tuple[tuple[str, ...], Count]]:
        """The counters of a metric."""
        for (name, labels), count in self.counts.items():
            if name == metric.name:
                yield labels, count

    def as_json(self) -> dict[str, Any]:
        """Everything, as plain lists and numbers."""
        return {
            "counts": [
                [name, list(labels), count.number, count.last_wall_seconds]
                for (name, labels), count in self.counts.items()
            ],
            "open": [[list(key), *value] for key, value in self._open.items()],
            "recent": list(self.recent),
            "next_id": self._next_id,
        }

    def take_up(self, told: dict[str, Any]) -> None:
        """Goes on from what ``as_json`` once gave.

        Raises:
            KeyError, TypeError, ValueError: it is not of that shape.
        """
        for name, labels, number, last in told["counts"]:
            metric = METRIC_BY_NAME[str(name)]
            values = tuple(map(str, labels))
            if len(values) != len(metric.labels):
                raise ValueError(f"{name} has other labels now")
            wall = None if last is None else float(last)
            self.counts[(metric.name, values)] = Count(int(number), wall)
        for key, seconds, number in told["open"]:
            self._open[tuple(map(str, key))] = (float(seconds), int(number))
        self.recent.extend(dict(one) for one in told["recent"])
        self._next_id = int(told["next_id"])

    def _follows(self, log: str, finding: Finding, message: Message) -> bool:
        """Whether the incident that caused this one still lasts."""
        if finding.cause is None:
            return False
        story, address, number = finding.cause
        return any(
            key[:3] == (log, story, address)
            and key[4] == number
            and abs(message.seconds - seconds) <= finding.quiet_seconds
            for key, (seconds, _) in self._open.items()
        )

    def told_lately(self, address: str, number: str, wall_seconds: float) -> bool:
        """Whether any log told of this fault of a GPU within its quiet time."""
        return any(
            name == GPU_XID_INCIDENTS.name
            and (labels[0], labels[2]) == (address, number)
            and abs((count.last_wall_seconds or 0.0) - wall_seconds) <= _LONGEST_QUIET_SECONDS
            for (name, labels), count in self.counts.items()
        )

    def lasts(self, log: str, finding: Finding, seconds: float) -> bool:
        """Whether the incident that a finding belongs to is open, by the clock of the log."""
        known = self._open.get((log, *finding.key))
        return known is not None and abs(seconds - known[0]) <= finding.quiet_seconds

    def _was_told(self, log: str, finding: Finding, message: Message) -> bool:
        """Whether the driver told of it as an event, which was counted, before its log did."""
        if finding.metric is not GPU_XID_INCIDENTS or log == BY_EVENT:
            return False
        address, _, number = finding.labels
        for key, (wall_seconds, _) in self._open.items():
            same = key[:3] == (BY_EVENT, "xid", address) and key[4] == number
            if same and abs(message.wall_seconds - wall_seconds) <= _LATEST_SECONDS:
                del self._open[key]  # of several processes' faults it was one
                return True
        return False

    def _trim(self, seconds: float) -> None:
        """Forgets incidents that no message can prolong any more, oldest first."""
        if len(self._open) > _MOST_OPEN:
            lasting = {
                key: value
                for key, value in self._open.items()
                if abs(seconds - value[0]) <= _LONGEST_QUIET_SECONDS
            }
            self._open = dict(list(lasting.items())[-_MOST_OPEN // 2 :])

    def _remember(self, log: str, finding: Finding, message: Message, *, counted: bool) -> None:
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
                "counted": counted,
            }
        )
        self._next_id += 1

    def _prolong(self, number: int, message: Message) -> None:
        for one in reversed(self.recent):
            if one["id"] == number:
                one["last_seconds"] = max(one["last_seconds"], message.wall_seconds)
                one["messages"] += 1
                return
