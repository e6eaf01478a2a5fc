"""Which part of a recording is wanted: a window by steps or by time."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

_FIRST_TIME = 1_000_000_000.0  # 2001: a smaller number counts steps
_AGO = re.compile(r"-(\d+(?:\.\d+)?)(s|m|h|d)")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


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
        """Whether it takes everything."""
        return self.first is None and self.last is None


def parse_bound(text: str, now_seconds: float) -> Bound:
    """A step (``400``), a time (ISO 8601, epoch seconds, ``now``) or time ago (``-15m``).

    Raises:
        ValueError: it is none of these.
    """
    if text == "now":
        return Bound(wall_seconds=now_seconds)
    if ago := _AGO.fullmatch(text):
        return Bound(wall_seconds=now_seconds - float(ago[1]) * _SECONDS[ago[2]])
    if re.fullmatch(r"\d{1,15}(\.\d+)?", text):
        number = float(text)
        return Bound(wall_seconds=number) if number >= _FIRST_TIME else Bound(step=int(number))
    try:
        told = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is no bound of a window; give a step (400), a time (2026-01-31T12:00:00,"
            " taken as UTC, or epoch seconds), now, or time ago (-15m)"
        ) from None
    return Bound(wall_seconds=(told if told.tzinfo else told.replace(tzinfo=UTC)).timestamp())
