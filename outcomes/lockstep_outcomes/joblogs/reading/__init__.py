"""From the text of a log to ranks, times, steps and findings."""
