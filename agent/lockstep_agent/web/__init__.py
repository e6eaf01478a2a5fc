"""Who may scrape, and how: TLS, passwords and tokens by Prometheus' web configuration file."""

from lockstep_agent.web.access_control import AccessControl, Rules
from lockstep_agent.web.connection_limiter import ConnectionLimiter

__all__ = ["AccessControl", "ConnectionLimiter", "Rules"]
