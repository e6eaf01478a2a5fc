"""Alerts on what many nodes share: ports, the fabric, storage."""
