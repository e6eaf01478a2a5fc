"""Writes the pages of thousands of simulated ranks, to try the monitoring at cluster size."""

import signal
from pathlib import Path
from typing import Any

import click

from lockstep_cli.options import bad_input, option
from lockstep_records.files.jobs import check_job_id, find_root, new_job_id
from lockstep_trainer.config import options_from_fields
from lockstep_trainer.simulation import write_pages
from lockstep_trainer.simulation.spec import Simulation


@click.command()
@click.option("--job-id", default="", help="Name of the job; default: a new one.")
@option("--cluster", default="local", help="Name of the cluster.")
@click.option("--project", default="", help="Project that the job is accounted to; default: none.")
@click.option(
    "--dir",
    "root",
    type=click.Path(path_type=Path),
    help="Folder of all jobs, on a tmpfs; default: LOCKSTEP_DIR or /run/lockstep.",
)
@options_from_fields(Simulation)
def simulate(*, job_id: str, cluster: str, project: str, root: Path | None, **flags: Any) -> int:
    """Write the pages that a job of many ranks would write, without training anything.

    Agent, rules, boards and reports read them like those of a real job. Ctrl-C or SIGTERM ends the
    job as cancelled.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with bad_input():
        simulation = Simulation(**flags)
        job_id = check_job_id(job_id or new_job_id())
        click.echo(f"lockstep: simulating {simulation.ranks} ranks as job {job_id}", err=True)
        result = write_pages.simulate(
            simulation, root=root or find_root(), job_id=job_id, cluster=cluster, project=project
        )
    click.echo(
        f"lockstep: {result.rank_steps} rows in {result.folder}, "
        f"{result.rank_steps_per_second:.0f} a second of work, "
        f"at most {result.max_lateness_seconds:.2f} s behind the clock",
        err=True,
    )
    return result.exit_code
