"""``lockstep top``: the ranks of a running job, from rank pages or from a Prometheus."""
