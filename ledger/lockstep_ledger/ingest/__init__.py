"""From the bytes of a request to events in the store, answered after the commit."""
