"""``lockstep demo``: the way from a slow rank to the page and the report, on this machine."""
