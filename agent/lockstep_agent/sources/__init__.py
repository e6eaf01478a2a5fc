"""The rim of the agent: drivers, /sys and /proc, turned into plain values or None."""
