"""Prometheus as a server to ask: its client, and the text of a scrape."""
