"""A window of a recording, bounded by steps or by times."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from lockstep_records.durations import parse_duration

_FIRST_TIME = 1_000_000_000.0  # 2001: a smaller number counts steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """One end of a window: a step, or a wall clock time in seconds since the epoch."""

    step: int | None = None
    wall_seconds: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """From the first bound to the last, both included; None where open."""

    first: Bound | None = None
    last: Bound | None = None

    @property
    def is_open(self) -> bool:
        """Whether it includes everything."""
        return self.first is None and self.last is None


def parse_bound(text: str, now_seconds: float) -> Bound:
    """A step (``400``), a time (ISO 8601, epoch seconds, ``now``) or time ago (``-15m``).

    Raises:
        ValueError: it is none of these.
    """
    if re.fullmatch(r"\d{1,15}(\.\d+)?", text):
        number = float(text)
        return Bound(wall_seconds=number) if number >= _FIRST_TIME else Bound(step=int(number))
    try:
        return Bound(wall_seconds=_wall_seconds(text, now_seconds))
    except ValueError:
        raise ValueError(
            f"{text!r} is no bound of a window; give a step (400), a time (2026-01-31T12:00:00,"
            " taken as UTC, or epoch seconds), now, or time ago (-15m)"
        ) from None


def _wall_seconds(text: str, now_seconds: float) -> float:
    """Seconds since the epoch of ``now``, a time ago, or an ISO 8601 time."""
    if text == "now":
        return now_seconds
    if text.startswith("-"):
        return now_seconds - parse_duration(text[1:])
    time = datetime.fromisoformat(text)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
