"""Finds the units that were late: stretches of steps, single steps, and tests against chance."""
