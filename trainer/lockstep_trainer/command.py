"""Trains a byte-level GPT on real text with several ranks of this machine, watched."""

from pathlib import Path
from typing import Any

import click

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
        from lockstep_trainer.simulate_command import simulate  # noqa: PLC0415  # loads torch

        rest = [argument for argument in args if argument != "--simulate"]
        return simulate.make_context(f"{info_name} --simulate", rest, parent, **extra)


@click.command(cls=_Train)
@click.option(
    "--simulate",
    is_flag=True,
    expose_value=False,
    help="Write the pages of simulated ranks instead; its flags: --simulate --help.",
)
@click.option(
    "--nproc-per-node",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Ranks on this node.",
)
@click.option("--job-id", default="", help="Name of the job; a new one when left out.")
@click.option(
    "--max-restarts",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="How often the ranks are started again after a failure; 0 = never.",
)
@click.option("--cluster", default="local", show_default=True, help="Name of the cluster.")
@click.option("--project", default="", help="Who the job is accounted to.")
@click.option(
    "--dir",
    "root",
    type=click.Path(path_type=Path),
    default=None,
    help="Folder of all jobs, on a tmpfs; LOCKSTEP_DIR or /dev/shm/lockstep by default.",
)
@click.option("--serve", default="", help="HOST:PORT to serve the job's pages at; empty = do not.")
@trainer_flags
def train(
    *,
    nproc_per_node: int,
    job_id: str,
    max_restarts: int,
    cluster: str,
    project: str,
    root: Path | None,
    serve: str,
    **flags: Any,
) -> int:
    """Train a small GPT on the sources of the Python standard library, or on --data.

    Everything is checked before a rank starts. Progress goes to stderr; the result is told at the
    end and written with --summary.
    """
    from lockstep.launch import launch  # noqa: PLC0415  # torch is loaded only to run, not to help
    from lockstep_trainer.preflight import check_run  # noqa: PLC0415  # the same

    try:
        config = TrainConfig(**flags)
        check_run(config, world_size=nproc_per_node)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return launch(
        ("-m", "lockstep_trainer", *config.as_arguments()),
        nproc_per_node=nproc_per_node,
        job_id=job_id,
        root=root,
        cluster=cluster,
        project=project,
        max_restarts=max_restarts,
        serve=serve,
    )
