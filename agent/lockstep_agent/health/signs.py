"""A sign: one thing wrong with one part, before anybody asked how long it has been so."""

from dataclasses import dataclass

from lockstep_agent.health.facts import Labels
from lockstep_catalogue import Metric


@dataclass(frozen=True, slots=True)
class Sign:
    """One thing wrong.

    Attributes:
        metric: the verdict that it belongs to.
        part: label values of the part, those before verdict and reason.
        hold_seconds: how long it must last to be told.
    """

    metric: Metric
    part: Labels
    verdict: str
    reason: str
    hold_seconds: float = 0.0
