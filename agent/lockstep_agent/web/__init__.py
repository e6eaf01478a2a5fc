"""Who may scrape, and how: TLS, passwords and tokens by Prometheus' web configuration file."""

from lockstep_agent.web.access_control import Gate, Rules
from lockstep_agent.web.connection_limiter import Crowd

__all__ = ["Crowd", "Gate", "Rules"]
