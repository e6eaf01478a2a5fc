"""The server of metrics and health, and who may ask it."""
