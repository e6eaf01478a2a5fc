"""The price of a GPU-hour: rate card, days of a time zone, and the one function that answers."""
