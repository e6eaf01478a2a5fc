"""What was recorded, as frozen values: ranks x steps, operations, collectives."""
