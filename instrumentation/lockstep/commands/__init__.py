"""Commands that change what a running job records."""
