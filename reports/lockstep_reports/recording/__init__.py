"""A recording as frozen values: ranks x steps, operations, collectives."""
