"""Verdicts on GPUs, ports and the node: readings -> signs -> verdicts, thresholds as arguments."""

from lockstep_agent.health.expected import Expectations, ExpectedPort
from lockstep_agent.health.judge import Judge, Verdicts
from lockstep_agent.health.signs import Limits

__all__ = ["Expectations", "ExpectedPort", "Judge", "Limits", "Verdicts"]
