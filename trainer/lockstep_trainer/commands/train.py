"""Trains a byte-level GPT on real text with several ranks of this machine, monitored."""

from typing import Any

import click

from lockstep.launch.options import JOB_FIELDS, job_options
from lockstep.launch.run import launch
from lockstep_cli.options import bad_input
from lockstep_trainer.config import TrainConfig, trainer_flags


@click.command()
@job_options
@trainer_flags
def train(**options: Any) -> int:
    """Train a small GPT on the sources of the Python standard library, or on --data.

    The options are checked before a rank starts. Progress goes to stderr. The result is printed at
    the end, and written with --summary.
    """
    # Imports torch, which takes seconds: `lockstep --help` must not wait for it.
    from lockstep_trainer.preflight import check_run  # noqa: PLC0415  # torch: only to run

    job = {name: options.pop(name) for name in JOB_FIELDS}
    with bad_input():
        config = TrainConfig(**options)
        check_run(config, world_size=job["nproc_per_node"] * job["nnodes"])
    return launch(("-m", "lockstep_trainer", *config.as_arguments()), **job)
