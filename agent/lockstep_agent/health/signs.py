"""A sign: one fault of one part at one moment; and the limits from which on it counts."""

from dataclasses import dataclass

from lockstep_agent.health.facts import Labels
from lockstep_catalogue import Metric


@dataclass(frozen=True, slots=True)
class Sign:
    """One fault of one part.

    Attributes:
        part: label values of the part, those before verdict and reason.
        hold_seconds: how long it must last to be reported.
    """

    metric: Metric
    part: Labels
    verdict: str
    reason: str
    hold_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """From which value and duration on a sign counts.

    Attributes:
        busy_ratio: utilization from which on a GPU is under load; an idle link may sleep.
        link_hold_seconds: how long a link must be slow to be reported, and well to be cleared.
        throttle_hold_seconds: the same for clocks that are held back.
    """

    busy_ratio: float = 0.5
    link_hold_seconds: float = 30.0
    throttle_hold_seconds: float = 60.0
