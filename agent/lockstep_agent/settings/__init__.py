"""The agent's settings: its options, their checks, and the file that holds them."""
