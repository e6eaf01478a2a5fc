"""Judge this node for people, prologs and preflight, or print what a rank page holds."""

from pathlib import Path

import click

from lockstep_agent.command import (
    EXPECT_GPUS,
    EXPECT_PORT,
    NVML_LIBRARY,
    PROCFS,
    SYSFS,
)
from lockstep_agent.health.expected import Expectations, ExpectedPort
from lockstep_records.options import FiniteRange
from lockstep_records.page.describe import print_page

_SECONDS = FiniteRange(0.2, 600)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("page", type=click.Path(path_type=Path), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
@click.option("--url", metavar="URL", help="Ask the agent that serves here; it knows the past.")
@click.option(
    "--seconds",
    type=_SECONDS,
    default=2.0,
    show_default=True,
    help="How long to look, and how long each probe runs; what is wrong all the time is told.",
)
@EXPECT_GPUS
@EXPECT_PORT
@SYSFS
@PROCFS
@NVML_LIBRARY
@click.option("--preflight", is_flag=True, help="Also measure GPUs, memory and all-reduce.")
@click.option(
    "--fleet",
    metavar="FILE",
    type=_FILE,
    help="What --preflight --json printed on other nodes, one JSON object a line.",
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
    *,
    page: Path | None,
    as_json: bool,
    url: str | None,
    seconds: float,
    expect_gpus: int | None,
    expect_port: tuple[ExpectedPort, ...],
    sysfs: Path,
    procfs: Path,
    nvml_library: Path | None,
    preflight: bool,
    fleet: Path | None,
    slower_than: float,
) -> int:
    """Judge this node; with PAGE, print that rank page instead.

    Exits with 0 when the node is ok, 1 when it is degraded or slower than the fleet, 2 when it
    failed or cannot be judged. With PAGE: 2 and one sentence when it cannot be read.
    """
    if page is not None:
        _refuse_the_rest(ctx)
        print_page(page, as_json=as_json)
        return 0
    if fleet is not None and not preflight:
        raise click.UsageError(f"--fleet {fleet} is compared by --preflight only; give both")
    from lockstep_agent.doctor import checkup  # noqa: PLC0415  # a page needs none of the agent's parts

    look = checkup.Look(
        url=url,
        seconds=seconds,
        expected=Expectations(gpus=expect_gpus, ports=expect_port),
        sysfs=sysfs,
        procfs=procfs,
        nvml_library=nvml_library,
    )
    probe = checkup.Probe(fleet=fleet, slower_than_ratio=slower_than) if preflight else None
    return checkup.check_up(look, probe, as_json=as_json)


def _refuse_the_rest(ctx: click.Context) -> None:
    """A page has nothing to do with the node: who gives both means something else."""
    told = [
        f"--{name.replace('_', '-')}"
        for name in ctx.params
        if name not in {"page", "as_json"}
        and ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    ]
    if told:
        raise click.UsageError(f"{told[0]} is about the node; leave it out, or leave out PAGE")
