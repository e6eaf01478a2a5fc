"""Recent events of a collector, made JSON once a change, and those of several as one list."""

import json
from collections import deque
from collections.abc import Sequence
from typing import Any

_MOST = 200


class RecentEvents:
    """The newest events, oldest first, each a JSON object with ``first_seconds``.

    Attributes:
        json: all of them as a JSON list; replaced as a whole, so that any thread may take it.
    """

    def __init__(self) -> None:
        self._events: deque[dict[str, Any]] = deque(maxlen=_MOST)
        self.json = b"[]"

    def add(self, event: dict[str, Any]) -> None:
        """Adds the newest event; the oldest of two hundred goes."""
        self._events.append(event)

    def changed(self) -> None:
        """Makes what was added or changed readable."""
        self.json = json.dumps(list(self._events)).encode()


def joined(lists: Sequence[bytes]) -> bytes:
    """Several JSON lists as one, in the order given."""
    parts = [one.strip()[1:-1].strip() for one in lists]
    return b"[" + b", ".join(part for part in parts if part) + b"]"
