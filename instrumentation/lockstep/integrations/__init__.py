"""Ways in for loops that other people wrote: one module a framework, imported by who uses it."""
