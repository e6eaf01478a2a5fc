"""``lockstep alerts check`` and ``test``: asks promtool and amtool about the generated files."""

import time
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import click
from rich.console import Console

from lockstep_alerts.checks import tool_checks
from lockstep_alerts.output.write import GENERATED

_FOLDER = click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=GENERATED,
    show_default=True,
    help="Folder with the generated files.",
)
_PROMTOOL = click.option(
    "--promtool",
    "promtools",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    multiple=True,
    help="A promtool to use besides promtool and promtool3 on PATH; repeatable.",
)


@click.command()
@_FOLDER
@_PROMTOOL
@click.pass_context
def check(ctx: click.Context, folder: Path, promtools: tuple[Path, ...]) -> None:
    """Lint the generated rules and check Alertmanager's configuration; exit 1 on a finding."""
    ctx.exit(_report(folder, tool_checks.static_checks(folder, *tool_checks.find_tools(promtools))))


@click.command()
@_FOLDER
@_PROMTOOL
@click.pass_context
def test(ctx: click.Context, folder: Path, promtools: tuple[Path, ...]) -> None:
    """Run the rule tests of the folder, the lint, and a test of every route; exit 1 on a finding.

    Rule tests are written in a checkout, and take about a second for each alert.
    """
    if not any(folder.glob(tool_checks.TESTS)):
        click.echo(
            f"--dir {folder}: has no {tool_checks.TESTS}, so no rule is tested on series; in a "
            f"checkout python -m tests.alerts.cases.write --out {folder} writes them, by the same "
            "--spec",
            err=True,
        )
    ctx.exit(_report(folder, tool_checks.every_check(folder, *tool_checks.find_tools(promtools))))


def _report(folder: Path, checks: Iterable[tool_checks.Check]) -> int:
    """Prints a line for each check; the exit status."""
    failed = False
    console = Console(stderr=True)
    begin = time.monotonic()
    with console.status("") as status:

        def progress(title: str, num_done: int, num_runs: int) -> None:
            status.update(f"{title}: {num_done} of {num_runs} runs")

        for finding in chain([tool_checks.lint(folder)], tool_checks.run_checks(checks, progress)):
            seconds = time.monotonic() - begin
            click.echo(
                f"{'passed' if finding.passed else 'FAILED'}  {finding.title}  {seconds:.1f}s"
            )
            if not finding.passed:
                click.echo(finding.output)
            failed = failed or not finding.passed
            begin = time.monotonic()
    return 1 if failed else 0
