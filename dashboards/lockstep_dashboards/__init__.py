"""Boards for Grafana and pages without it, made from the catalogue."""
