"""From the bytes of a request to checked events."""
