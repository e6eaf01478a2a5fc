"""Who may scrape, and how: TLS, passwords and tokens by Prometheus' web configuration file."""

from lockstep_agent.web.crowd import Crowd
from lockstep_agent.web.gate import Gate, Rules

__all__ = ["Crowd", "Gate", "Rules"]
