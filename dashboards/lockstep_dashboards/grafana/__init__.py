"""Boards as Grafana's JSON, by grafanalib and what it cannot say."""

from lockstep_dashboards.grafana.board import GENERATED_NOTE, SCHEMA_VERSION, board_json, render

__all__ = ["GENERATED_NOTE", "SCHEMA_VERSION", "board_json", "render"]
