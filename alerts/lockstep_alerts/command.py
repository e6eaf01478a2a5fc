"""Generates rules and routes from the alert spec, and checks them."""

from pathlib import Path
from typing import Any

import click

from lockstep_alerts.checks import check, refuse_too_costly, test
from lockstep_alerts.explain import expected_false_alarms, explain
from lockstep_alerts.output import GENERATED, differing, render, write_files
from lockstep_alerts.reading.model import Delivery, Duration
from lockstep_alerts.routing import read_deployment
from lockstep_alerts.shipped import interval_option, spec_option, spec_path
from lockstep_alerts.spec import read_spec
from lockstep_alerts.writers import remark_on, render_for
from lockstep_alerts.writers.formats import read_target, target_options

_ABSOLUTE = ("https://", "http://")
_DEFAULTS = Delivery()


@click.group()
def alerts() -> None:
    """Generate alert rules and routes from slos.yaml, and check them."""


@alerts.command()
@spec_option
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=GENERATED,
    show_default=True,
    help="Folder that the files are written to.",
)
@interval_option
@click.option(
    "--runbook-base",
    default=_DEFAULTS.runbook_base,
    show_default=True,
    help="Prefix of the file name in links to runbooks.",
)
@click.option(
    "--dashboard-base",
    default=_DEFAULTS.dashboard_base,
    help="Prefix of /d/... in links to boards, such as https://grafana.example.",
)
@click.option(
    "--deployment",
    "deployment_file",
    type=click.Path(path_type=Path),
    help="Who is notified, when and from which thresholds on; default: webhooks of lockstep stack.",
)
@target_options
@click.option("--check", "only_compare", is_flag=True, help="Write nothing; exit 1 on differences.")
@click.pass_context
def generate(
    ctx: click.Context,
    /,
    *,
    spec: Path | None,
    out: Path,
    interval: Duration | None,
    runbook_base: str,
    dashboard_base: str,
    deployment_file: Path | None,
    only_compare: bool,
    **of_target: Any,
) -> None:
    """Write the rule files and the Alertmanager configuration."""
    target = read_target(**of_target)
    delivery = Delivery(runbook_base=runbook_base, dashboard_base=dashboard_base)
    deployment = read_deployment(deployment_file) if deployment_file else None
    read = read_spec(spec or spec_path(), interval, deployment_file)
    refuse_too_costly(read)
    files = render_for(target, render(read, delivery, deployment))
    if only_compare:
        stale = differing(out, files)
        for name in stale:
            click.echo(f"{out / name} differs from the spec; run lockstep alerts generate")
        ctx.exit(1 if stale else 0)
    try:
        write_files(out, files)
    except OSError as error:
        raise click.UsageError(f"--out {out}: {error.strerror}; name a writable folder") from error
    for name in files:
        click.echo(out / name)
    for line in expected_false_alarms(read):
        click.echo(line)
    _warn_of_relative_links(delivery)
    if remark := remark_on(target, files):
        click.echo(remark, err=True)


def _warn_of_relative_links(delivery: Delivery) -> None:
    """Says which addresses are missing: a mail or a chat has no page that a link is relative to."""
    bases = {
        "--runbook-base": delivery.runbook_base,
        "--dashboard-base": delivery.dashboard_base,
    }
    relative = [flag for flag, base in bases.items() if not base.startswith(_ABSOLUTE)]
    if relative:
        click.echo(
            f"links in pages are relative; give {' and '.join(relative)} an address, such as "
            "https://host/",
            err=True,
        )


@alerts.command("list")
@spec_option
def list_alerts(*, spec: Path | None) -> None:
    """Print the alerts of the spec with their severity."""
    read = read_spec(spec or spec_path(), None)
    for name, severity in sorted({(each.name, each.severity) for each in read.alerts}):
        click.echo(f"{name} ({severity})")


alerts.add_command(check)
alerts.add_command(explain)
alerts.add_command(test)
