"""Notification: receivers and routes of a deployment."""

from lockstep_alerts.routing.receivers import Deployment, read_deployment
from lockstep_alerts.routing.tree import alertmanager_config

__all__ = ["Deployment", "alertmanager_config", "read_deployment"]
