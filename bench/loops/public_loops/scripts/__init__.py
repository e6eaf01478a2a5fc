"""Training scripts of seventeen public kinds, small enough for a CPU; each runs by its ``main``."""
