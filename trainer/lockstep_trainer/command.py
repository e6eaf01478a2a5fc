"""Trains a byte-level GPT on real text with several ranks of this machine, watched."""

from pathlib import Path
from typing import Any

import click

from lockstep_trainer.config import TrainConfig, trainer_flags


@click.command()
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
    """Train a small GPT on the sources of the Python standard library.

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
