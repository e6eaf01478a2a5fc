"""The thresholds of the verdicts."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """From when on a sign counts.

    Attributes:
        busy_ratio: utilization from which a GPU is under load; an idle link may sleep.
        link_hold_seconds: how long a slow link must last to be told, and be gone to be forgotten.
        throttle_hold_seconds: the same for clocks that are held back.
    """

    busy_ratio: float = 0.5
    link_hold_seconds: float = 30.0
    throttle_hold_seconds: float = 60.0

    @classmethod
    def at_once(cls) -> "Limits":
        """For one look at a node: a sign counts when it is seen."""
        return cls(link_hold_seconds=0.0, throttle_hold_seconds=0.0)
