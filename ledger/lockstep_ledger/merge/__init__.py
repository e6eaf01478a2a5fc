"""From the events of a job to its record and to what the counters add, by rules and nothing else."""
