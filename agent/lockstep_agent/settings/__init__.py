"""The agent's settings: its options and their checks."""
