"""The options of a job on the command line: what runs, what the job is, and where its events go."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from lockstep.launch import torchrun
from lockstep_cli.options import DurationRange, FiniteRange, Parsed
from lockstep_outcomes.progress.hangs import HANG_TIMEOUT_SECONDS, PAUSE_TIMEOUT_SECONDS
from lockstep_records.text.durations import format_duration

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _read_time(text: str) -> float:
    """Seconds since 1970 of a date and time in ISO 8601; without a zone it is UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time; write 2026-12-01T06:00+01:00.") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _texts(**help_by_name: str) -> dict[str, Any]:
    """Options that are texts, empty by default, by their names."""
    return {
        name: click.option(f"--{name.replace('_', '-')}", name, default="", help=text)
        for name, text in help_by_name.items()
    }


_JOB_OPTIONS = {
    "nproc_per_node": torchrun.torchrun_option(
        "nproc_per_node",
        "Ranks on this node: a number, auto, gpu or cpu.",
        type=Parsed("count", torchrun.read_rank_count),
        default=1,
        show_default=True,
    ),
    "nnodes": torchrun.torchrun_option(
        "nnodes",
        "Nodes of the job; all start this command with the same --job-id and --endpoint.",
        type=Parsed("count", torchrun.read_node_count),
        default=1,
        show_default=True,
    ),
    "endpoint": torchrun.torchrun_option(
        "rdzv_endpoint", "HOST:PORT of the rendezvous of several nodes.", "--endpoint", default=""
    ),
    "job_id": click.option(
        "--job-id",
        *torchrun.spellings("rdzv_id"),
        "job_id",
        default="",
        help="Name of the job; by default LOCKSTEP_JOB_ID, or what Slurm or Kubernetes say.",
    ),
    "max_restarts": torchrun.torchrun_option(
        "max_restarts",
        "Restarts of all ranks after a failure; 0 = none.",
        type=click.IntRange(0),
        default=0,
        show_default=True,
    ),
    "cluster": click.option(
        "--cluster",
        default="local",
        show_default=True,
        help="Name of the cluster, a label.",
    ),
    "project": click.option("--project", default="", help="Account of the job; empty = none."),
    "root": click.option(
        "--dir",
        "root",
        type=click.Path(path_type=Path),
        help="Folder of all jobs, on a tmpfs; LOCKSTEP_DIR, /run/lockstep or /dev/shm/lockstep.",
    ),
    "serve": click.option(
        "--serve", default="", help="HOST:PORT that serves the job's metrics; empty = none."
    ),
    "log_json": click.option(
        "--log-json", is_flag=True, help="Write the ranks' logs as JSON lines with job and step."
    ),
    "summary_to": click.option(
        "--summary-to",
        metavar="SINK[:TARGET]",
        multiple=True,
        help="Write summaries and the verdict to mlflow, wandb or tensorboard; repeatable.",
    ),
    "hang_timeout_seconds": click.option(
        "--hang-timeout",
        "hang_timeout_seconds",
        type=DurationRange(),
        default=format_duration(HANG_TIMEOUT_SECONDS),
        show_default=True,
        help="Time without progress that is a hang, 20 median steps at least; 0s = do not watch.",
    ),
    "pause_timeout_seconds": click.option(
        "--pause-timeout",
        "pause_timeout_seconds",
        type=DurationRange(),
        default=format_duration(PAUSE_TIMEOUT_SECONDS),
        show_default=True,
        help="Hang time-out in initialisation, checkpoint, evaluation, restore; 0s = do not watch.",
    ),
}
DESCRIPTION_OPTIONS = _texts(
    name="Name that people know the job by.",
    user="Who runs it; by default whoever submitted it.",
    job_class="Class of the job, such as pretraining or debug; by default Slurm's QOS.",
    queue="Queue; by default Slurm's partition.",
    gpu_model="Model of the GPUs; by default the driver's.",
    currency="ISO 4217 code of the price.",
) | {
    "deadline_time": click.option(
        "--deadline",
        "deadline_time",
        type=Parsed("time", _read_time),
        help="When it must be done, such as 2026-12-01T06:00+01:00.",
    ),
    "declared_tokens": click.option(
        "--declared-tokens", type=click.IntRange(1), help="Tokens to be trained on."
    ),
    "price_per_gpu_hour": click.option(
        "--price-per-gpu-hour", type=FiniteRange(0), help="Price of one GPU for one hour."
    ),
}
"""Options that only describe the job; they become fields of its events."""
LEDGER_OPTIONS = {
    "ledger": click.option(
        "--ledger",
        metavar="URL",
        default="",
        envvar="LOCKSTEP_LEDGER",
        help="Deliver the events of jobs to this address, unless an agent of this node does.",
    ),
    "ledger_token": click.option(
        "--ledger-token-file",
        "ledger_token",
        type=_FILE,
        envvar="LOCKSTEP_LEDGER_TOKEN_FILE",
        help="File that holds the token of a writer of the ledger.",
    ),
    "ledger_ca": click.option(
        "--ledger-ca",
        type=_FILE,
        envvar="LOCKSTEP_LEDGER_CA",
        help="Certificates by which an https ledger is trusted; by default the system's.",
    ),
}
_ALL_OPTIONS = _JOB_OPTIONS | torchrun.TORCHRUN_OPTIONS | DESCRIPTION_OPTIONS | LEDGER_OPTIONS
JOB_FIELDS = tuple(_ALL_OPTIONS)


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of a job to a click command; their values are for ``launch``."""
    for option in reversed(_ALL_OPTIONS.values()):
        command = option(command)
    return command
