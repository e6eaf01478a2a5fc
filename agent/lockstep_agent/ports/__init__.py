"""Network ports: their counters by driver, in tables, and the verdict that follows."""
