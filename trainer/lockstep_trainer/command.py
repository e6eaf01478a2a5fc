"""Trains a byte-level GPT on real text with several ranks of this machine, watched."""

from typing import Any

import click

from lockstep.launch.run import JOB_FIELDS, job_options, launch
from lockstep_trainer.config import TrainConfig, trainer_flags


class _Train(click.Command):
    """The command, or the one of simulated ranks where --simulate is given."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        if "--simulate" not in args:
            return super().make_context(info_name, args, parent, **extra)
        from lockstep_trainer.simulation.command import simulate  # noqa: PLC0415  # loads torch

        rest = [argument for argument in args if argument != "--simulate"]
        return simulate.make_context(f"{info_name} --simulate", rest, parent, **extra)


@click.command(cls=_Train)
@click.option(
    "--simulate",
    is_flag=True,
    expose_value=False,
    help="Write the pages of simulated ranks instead; its flags: --simulate --help.",
)
@job_options
@trainer_flags
def train(**told: Any) -> int:
    """Train a small GPT on the sources of the Python standard library, or on --data.

    Everything is checked before a rank starts. Progress goes to stderr; the result is told at the
    end and written with --summary.
    """
    from lockstep_trainer.preflight import check_run  # noqa: PLC0415  # torch: only to run

    job = {name: told.pop(name) for name in JOB_FIELDS}
    try:
        config = TrainConfig(**told)
        check_run(config, world_size=job["nproc_per_node"] * job["nnodes"])
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return launch(("-m", "lockstep_trainer", *config.as_arguments()), **job)
