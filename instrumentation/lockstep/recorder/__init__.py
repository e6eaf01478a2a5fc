"""The hot path: one row a step into the rank page, and the device times of the step."""
