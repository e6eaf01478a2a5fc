"""Who this rank is: its job, attempt, position and scheduler, by environment and torch."""
