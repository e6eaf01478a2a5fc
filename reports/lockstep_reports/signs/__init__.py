"""Signs of trouble on a slow rank's node: when, how much, and by what source."""
