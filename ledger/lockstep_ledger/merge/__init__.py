"""From the events of a job to its record and what the counters add, by rules alone."""
