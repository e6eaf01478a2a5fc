"""Generates rules, routes and rule tests from the alert spec, and checks them."""

import shutil
import subprocess
from pathlib import Path

import click

from lockstep_alerts.model import Delivery
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import SpecError, read_spec
from lockstep_alerts.write import (
    ROUTES_FILE,
    RULES_FILE,
    TESTS_FILE,
    differing,
    render,
    write_files,
)

_GENERATED = Path("alerts/generated")
_DEFAULTS = Delivery()
_CHECKS = (
    ("promtool", "prometheus", ("check", "rules"), RULES_FILE),
    ("promtool", "prometheus", ("test", "rules"), TESTS_FILE),
    ("amtool", "prometheus-alertmanager", ("check-config",), ROUTES_FILE),
)


@click.group()
def alerts() -> None:
    """Make alert rules, routes and their tests from slos.yaml."""


@alerts.command()
@click.option("--spec", type=click.Path(path_type=Path), help="Alert spec; default: the shipped.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=_GENERATED,
    show_default=True,
    help="Folder for the files.",
)
@click.option(
    "--runbook-base",
    default=_DEFAULTS.runbook_base,
    show_default=True,
    help="What stands before the file name in links to runbooks.",
)
@click.option(
    "--dashboard-base",
    default=_DEFAULTS.dashboard_base,
    help="What stands before /d/... in links to boards, such as https://grafana.example.",
)
@click.option("--check", "only_compare", is_flag=True, help="Write nothing; exit 1 on differences.")
@click.pass_context
def generate(
    ctx: click.Context,
    *,
    spec: Path | None,
    out: Path,
    runbook_base: str,
    dashboard_base: str,
    only_compare: bool,
) -> None:
    """Write the rule file, the Alertmanager configuration and the rule tests."""
    delivery = Delivery(runbook_base=runbook_base, dashboard_base=dashboard_base)
    try:
        files = render(read_spec(spec or spec_path()), delivery)
    except SpecError as error:
        raise click.UsageError(str(error)) from error
    if only_compare:
        stale = differing(out, files)
        for name in stale:
            click.echo(f"{out / name} is not what the spec makes; run lockstep alerts generate")
        ctx.exit(1 if stale else 0)
    try:
        write_files(out, files)
    except OSError as error:
        raise click.UsageError(f"--out {out}: {error.strerror}; name a writable folder") from error
    for name in files:
        click.echo(out / name)


@alerts.command()
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=_GENERATED,
    show_default=True,
    help="Folder with the generated files.",
)
@click.pass_context
def check(ctx: click.Context, folder: Path) -> None:
    """Ask promtool and amtool about the generated files; exit 1 when one objects."""
    failed = False
    for program, package, words, name in _CHECKS:
        found = shutil.which(program)
        if found is None:
            raise click.UsageError(
                f"{program} is not on PATH; install it (Debian package {package})"
            )
        click.echo(f"{program} {' '.join(words)} {folder / name}")
        outcome = subprocess.run([found, *words, folder / name], check=False)
        failed = failed or outcome.returncode != 0
    ctx.exit(1 if failed else 0)
