"""From the rank pages of one job on this node to its readings."""
