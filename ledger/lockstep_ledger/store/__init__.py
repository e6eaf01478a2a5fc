"""The store: events, jobs, counters and refused letters in SQLite or PostgreSQL."""
