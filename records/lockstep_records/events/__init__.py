"""The events of a job: kinds, bounds, the file that holds them, and the schema."""
