"""The newest events of a collector as JSON, and the lists of several collectors as one."""

import json
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

_MAX_EVENTS = 200


class RecentEvents:
    """The newest two hundred events, oldest first; each is a JSON object with ``first_seconds``.

    Attributes:
        json: all of them as a JSON list. Each publication replaces the bytes object, so a server
            thread reads it without a lock.
    """

    def __init__(self) -> None:
        self._events: deque[dict[str, Any]] = deque(maxlen=_MAX_EVENTS)
        self._published: tuple[dict[str, Any], ...] = ()
        self.json = b"[]"

    def add(self, event: dict[str, Any]) -> None:
        """Adds the newest event; ``publish`` makes it readable. The oldest goes."""
        self._events.append(event)

    def replace(self, events: Iterable[dict[str, Any]]) -> None:
        """Replaces all events, oldest first, and publishes them."""
        self._events = deque(events, maxlen=_MAX_EVENTS)
        self.publish()

    def newest(self) -> list[dict[str, Any]]:
        """The published events, from any thread."""
        return [dict(event) for event in self._published]

    def publish(self) -> None:
        """Makes added and changed events readable."""
        self._published = tuple(self._events)
        self.json = json.dumps(self._published).encode()


def join_json_lists(lists: Sequence[bytes]) -> bytes:
    """Several JSON lists as one, in the order given."""
    contents = [encoded.strip()[1:-1].strip() for encoded in lists]
    return b"[" + b", ".join(content for content in contents if content) + b"]"
