"""``lockstep run``: starts the workers of a job and records how each of them ends."""
