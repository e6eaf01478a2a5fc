"""Commands that change what a running job records: switches and profiler traces."""
