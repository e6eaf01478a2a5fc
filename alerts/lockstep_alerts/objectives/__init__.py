"""Objectives of slos.yaml: one entry each becomes a page, a ticket and its part of the budget."""
