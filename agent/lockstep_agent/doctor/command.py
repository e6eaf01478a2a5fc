"""Judge whether this node is fit, for people, prologs and preflight."""

from pathlib import Path
from typing import Any

import click

from lockstep_agent.options import Options, command_options
from lockstep_cli.options import DurationRange, FiniteRange

_DURATION = DurationRange(0.2, 600.0)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
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
def doctor(
    *,
    as_json: bool,
    url: str | None,
    duration_seconds: float,
    preflight: bool,
    fleet: Path | None,
    slower_than: float,
    **node: Any,
) -> int:
    """Judge this node by its readings and, on request, by measurements.

    Exits with 0 when the node is ok, 1 when it is degraded or slower than the fleet, 2 when it
    failed or cannot be judged.
    """
    if fleet is not None and not preflight:
        raise click.UsageError(f"--fleet {fleet} is compared by --preflight only; give both")
    from lockstep_agent.doctor import checkup  # noqa: PLC0415  # --help needs none of the agent's parts

    return checkup.check_up(
        url,
        duration_seconds,
        Options(**node),
        measures=preflight,
        fleet=fleet,
        slower_than_ratio=slower_than,
        as_json=as_json,
    )
