"""Who was slow, since when, in which phase, what it cost: or nobody."""
