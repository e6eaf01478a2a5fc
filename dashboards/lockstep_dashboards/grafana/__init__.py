"""Boards as Grafana's JSON; grafanalib's names of what Grafana knows are bound here."""

from lockstep_dashboards.grafana.board import GENERATED_NOTE, SCHEMA_VERSION, board_json, render

__all__ = ["GENERATED_NOTE", "SCHEMA_VERSION", "board_json", "render"]
