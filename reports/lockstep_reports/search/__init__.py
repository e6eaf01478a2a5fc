"""Finds the units that were late: stretches of steps, single steps, and tests against chance.

``chance`` bounds probabilities, ``stretches`` and ``late`` find stretches of late steps, ``units``
says whose they may be, and ``candidates`` combines the evidence sources into one list.
"""
