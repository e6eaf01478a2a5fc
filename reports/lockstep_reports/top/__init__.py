"""``lockstep top``: a live table of the ranks of a running job, from rank pages or Prometheus."""
