"""The outcome of a job or an attempt: one table from evidence to outcome, class and cause."""
