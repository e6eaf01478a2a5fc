"""Network ports: tables of their counters by driver, and the verdict that follows from them."""
