"""The attacks by the place at which they aim, each entered in the table."""
