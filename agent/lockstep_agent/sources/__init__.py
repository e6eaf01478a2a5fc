"""The rim of the agent: drivers, /sys, /proc and logs, turned into plain values or None."""
