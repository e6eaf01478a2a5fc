"""Finds the units that were late: stretches of steps, single steps, tests against chance."""
