"""Finds the units that were late: stretches of steps, single steps, tested against chance."""
