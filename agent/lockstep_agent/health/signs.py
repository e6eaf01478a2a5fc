"""A sign: one fault of one part at one moment, before it is known whether it lasts."""

from dataclasses import dataclass

from lockstep_agent.health.facts import Labels
from lockstep_catalogue import Metric


@dataclass(frozen=True, slots=True)
class Sign:
    """One fault of one part.

    Attributes:
        metric: of the verdict that it belongs to.
        part: label values of the part, those before verdict and reason.
        hold_seconds: how long it must last to be reported.
    """

    metric: Metric
    part: Labels
    verdict: str
    reason: str
    hold_seconds: float = 0.0
