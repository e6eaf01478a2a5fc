"""Whether a job gets ahead: hangs, goodput, effective training time, and their events."""
