"""The rank page: one table of the format, from which writer, reader and docs come."""
