"""Lints the boards."""

import click

from lockstep_dashboards.boards import BOARDS
from lockstep_dashboards.lint.own import OWN_RULES
from lockstep_dashboards.lint.rules import lint_boards
from lockstep_dashboards.lint.upstream import EXCLUDED, RULES


@click.command()
def lint() -> int:
    """Lint the boards by all rules of dashboard-linter and the project's; exit 1 on complaints."""
    complaints = lint_boards(BOARDS)
    for complaint in complaints:
        click.echo(f"{complaint.board}: {complaint.text} [{complaint.rule}]")
    for name, reason in EXCLUDED.items():
        click.echo(f"excluded: {name}, since {reason}", err=True)
    num_rules = len(RULES) + len(OWN_RULES)
    click.echo(f"{len(BOARDS)} boards, {num_rules} rules, {len(complaints)} complaints")
    return 1 if complaints else 0
