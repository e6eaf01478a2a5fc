"""A lint of the boards: the 17 rules of Grafana's dashboard-linter, and the project's own."""

from lockstep_dashboards.lint.rules import Complaint, lint_board, lint_boards

__all__ = ["Complaint", "lint_board", "lint_boards"]
