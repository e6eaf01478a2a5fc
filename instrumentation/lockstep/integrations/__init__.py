"""Integrations with training frameworks: one module each, imported by its users only."""
