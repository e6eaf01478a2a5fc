"""The layout of a job: mesh, strategy and degrees, and the process group of its ranks."""
