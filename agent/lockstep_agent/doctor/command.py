"""Judge this node for people, prologs and preflight, or print what a job's rank pages hold."""

import os
from pathlib import Path
from typing import Any

import click

from lockstep_agent.settings.options import Options, command_options
from lockstep_cli.options import DurationRange, FiniteRange
from lockstep_cli.page import print_page

_DURATION = DurationRange(0.2, 600.0)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("record", metavar="[PAGE|JOB]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
@click.option("--url", metavar="URL", help="Address of an agent; its verdicts cover the past.")
@click.option(
    "--duration",
    "duration_seconds",
    type=_DURATION,
    default="2s",
    show_default=True,
    help="Duration of the observation and of each probe.",
)
@command_options("expect_gpus", "expect_port", "sysfs", "procfs", "nvml_library")
@click.option("--preflight", is_flag=True, help="Also measure GPUs, memory and all-reduce.")
@click.option(
    "--fleet",
    type=_FILE,
    help="Output of --preflight --json on other nodes, one JSON object a line.",
)
@click.option(
    "--slower-than",
    metavar="RATIO",
    type=FiniteRange(0.01, 1),
    default=0.9,
    show_default=True,
    help="Share of the fleet's median below which a figure is too slow.",
)
@click.pass_context
def doctor(
    ctx: click.Context,
    /,
    *,
    record: str | None,
    as_json: bool,
    url: str | None,
    duration_seconds: float,
    preflight: bool,
    fleet: Path | None,
    slower_than: float,
    **node: Any,
) -> int:
    """Judge this node; with PAGE or JOB (id or folder), print that rank page or the job's ranks.

    Exits with 0 when the node is ok, 1 when it is degraded or slower than the fleet, 2 when it
    failed or cannot be judged. With PAGE or JOB: 2 and one sentence when it cannot be read.
    """
    if record is not None:
        _refuse_node_options(ctx)
        _print_record(record, as_json=as_json)
        return 0
    if fleet is not None and not preflight:
        raise click.UsageError(f"--fleet {fleet} is compared by --preflight only; give both")
    from lockstep_agent.doctor import checkup  # noqa: PLC0415  # a page needs none of the agent's parts

    return checkup.check_up(
        url,
        duration_seconds,
        Options(**node),
        measures=preflight,
        fleet=fleet,
        slower_than_ratio=slower_than,
        as_json=as_json,
    )


def _print_record(record: str, *, as_json: bool) -> None:
    path = Path(record)
    if path.is_file() or (os.sep in record and not path.is_dir()):
        print_page(path, as_json=as_json)
        return
    from lockstep_agent.doctor.job import print_job  # noqa: PLC0415  # loads rich

    print_job(record, as_json=as_json)


def _refuse_node_options(ctx: click.Context) -> None:
    """Refuses options of the node together with a record, which they do not concern."""
    given = [
        name
        for name in ctx.params
        if name not in {"record", "as_json"}
        and ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    ]
    if given:
        [flag] = [option.opts[0] for option in ctx.command.params if option.name == given[0]]
        raise click.UsageError(f"{flag} is about the node; leave it out, or leave out PAGE or JOB")
