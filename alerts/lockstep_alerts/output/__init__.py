"""Generated files: groups of rules, and the recorded series in them."""
