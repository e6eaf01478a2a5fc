"""Judge whether this node is fit, for people, prologs and preflight."""

from pathlib import Path
from typing import Any

import click

from lockstep_agent.options import Options, command_options
from lockstep_cli.options import DurationRange, FiniteRange, option

_DURATION = DurationRange(0.2, 600.0)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option(
    "--json",
    "output",
    is_flag=False,
    flag_value="-",
    metavar="[FILE]",
    help="Print everything as one JSON object, or write it into a file.",
)
@click.option("--url", metavar="URL", help="Address of an agent; its verdicts cover the past.")
@option(
    "--duration",
    "duration_seconds",
    type=_DURATION,
    default="2s",
    help="Duration of the observation and of each probe.",
)
@command_options("expect_gpus", "expect_port", "sysfs", "procfs", "nvml_library")
@click.option("--gpu", is_flag=True, help="Check each GPU, also under load, against its model.")
@click.option(
    "--minutes",
    type=FiniteRange(0.1, 60),
    help="Duration of the load of --gpu in minutes; that of a probe by default.",
)
@click.option("--load", is_flag=True, help="Load GPUs that other processes use, too.")
@click.option("--preflight", is_flag=True, help="Also measure GPUs, memory and all-reduce.")
@click.option(
    "--fleet",
    type=_FILE,
    help="Output of --preflight --json on other nodes, one JSON object a line.",
)
@option(
    "--slower-than",
    metavar="RATIO",
    type=FiniteRange(0.01, 1),
    default=0.9,
    help="Share of the fleet's median below which a figure is too slow.",
)
def doctor(
    *,
    output: str | None,
    gpu: bool,
    minutes: float | None,
    load: bool,
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
    _check_together(gpu=gpu, of_gpu=load or minutes is not None, others=bool(url) or preflight)
    if fleet is not None and not preflight:
        raise click.UsageError(f"--fleet {fleet} is compared by --preflight only; give both")
    from lockstep_agent.doctor import checkup, gpu_fitness  # noqa: PLC0415  # --help needs none of the agent's parts

    options = Options(**node)
    if gpu:
        work = gpu_fitness.Load(minutes=minutes, on_used=load, seconds=duration_seconds)
        return gpu_fitness.check_gpus(options.nvml_library, work, output)
    return checkup.check_up(
        url,
        duration_seconds,
        options,
        measures=preflight,
        fleet=fleet,
        slower_than_ratio=slower_than,
        output=output,
    )


def _check_together(*, gpu: bool, of_gpu: bool, others: bool) -> None:
    if of_gpu and not gpu:
        raise click.UsageError("--load and --minutes are of --gpu; give that too")
    if gpu and others:
        raise click.UsageError("--gpu goes alone: leave out --url and --preflight")
