"""Identity of a rank: its job, attempt, position and scheduler, by environment and torch."""
