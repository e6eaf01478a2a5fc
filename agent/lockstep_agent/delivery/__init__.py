"""Deliveries from the node: events of jobs to the ledger, pages and events to the archive."""
