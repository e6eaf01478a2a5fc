"""The options of a job on the command line: what runs, what the job is, and where its events go."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from lockstep.launch.torchrun import (
    TORCHRUN_OPTIONS,
    NodeCount,
    RankCount,
    spellings,
    torchrun_option,
)
from lockstep_records.progress.hangs import HANG_TIMEOUT_SECONDS, PAUSE_TIMEOUT_SECONDS
from lockstep_records.shared.durations import format_duration
from lockstep_records.shared.options import DurationRange, FiniteRange

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


class _Moment(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.2 on
    """A date and time in ISO 8601; gives seconds since 1970."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Seconds; a time without a zone is UTC."""
        if isinstance(value, int | float):
            return float(value)
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not a time; write 2026-12-01T06:00+01:00.", param, ctx)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _option(name: str, flag: str, help_text: str, **settings: Any) -> Any:
    return click.option(flag, name, help=help_text, **settings)


_JOB_OPTIONS = {
    "nproc_per_node": torchrun_option(
        "nproc_per_node",
        "Ranks on this node: a number, auto, gpu or cpu.",
        type=RankCount(),
        default=1,
        show_default=True,
    ),
    "nnodes": torchrun_option(
        "nnodes",
        "Nodes of the job; all start this command with the same --job-id and --endpoint.",
        type=NodeCount(),
        default=1,
        show_default=True,
    ),
    "endpoint": torchrun_option(
        "rdzv_endpoint", "HOST:PORT of the rendezvous of several nodes.", "--endpoint", default=""
    ),
    "job_id": click.option(
        "--job-id",
        *spellings("rdzv_id"),
        "job_id",
        default="",
        help="Name of the job; by default LOCKSTEP_JOB_ID, or what Slurm or Kubernetes say.",
    ),
    "max_restarts": torchrun_option(
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
        default=None,
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
DESCRIPTION_OPTIONS = {
    "name": _option("name", "--name", "Name that people know the job by.", default=""),
    "user": _option("user", "--user", "Who runs it; by default whoever submitted it.", default=""),
    "job_class": _option(
        "job_class",
        "--job-class",
        "Class of the job, such as pretraining or debug; by default Slurm's QOS.",
        default="",
    ),
    "queue": _option("queue", "--queue", "Queue; by default Slurm's partition.", default=""),
    "gpu_model": _option(
        "gpu_model", "--gpu-model", "Model of the GPUs; by default the driver's.", default=""
    ),
    "deadline_time": _option(
        "deadline_time",
        "--deadline",
        "When it must be done, such as 2026-12-01T06:00+01:00.",
        default=None,
        type=_Moment(),
        metavar="TIME",
    ),
    "declared_tokens": _option(
        "declared_tokens",
        "--declared-tokens",
        "Tokens to be trained on.",
        default=None,
        type=click.IntRange(1),
    ),
    "price_per_gpu_hour": _option(
        "price_per_gpu_hour",
        "--price-per-gpu-hour",
        "Price of one GPU for one hour.",
        default=None,
        type=FiniteRange(0),
    ),
    "currency": _option("currency", "--currency", "ISO 4217 code of the price.", default=""),
}
"""Options that only describe the job; they become fields of its events."""
LEDGER_OPTIONS = {
    "ledger": _option(
        "ledger",
        "--ledger",
        "Deliver the events of jobs to this address, unless an agent of this node does.",
        metavar="URL",
        default="",
        envvar="LOCKSTEP_LEDGER",
    ),
    "ledger_token": _option(
        "ledger_token",
        "--ledger-token-file",
        "File that holds the token of a writer of the ledger.",
        metavar="FILE",
        type=_FILE,
        default=None,
        envvar="LOCKSTEP_LEDGER_TOKEN_FILE",
    ),
    "ledger_ca": _option(
        "ledger_ca",
        "--ledger-ca",
        "Certificates by which an https ledger is trusted; by default the system's.",
        metavar="FILE",
        type=_FILE,
        default=None,
        envvar="LOCKSTEP_LEDGER_CA",
    ),
}
_ALL_OPTIONS = _JOB_OPTIONS | TORCHRUN_OPTIONS | DESCRIPTION_OPTIONS | LEDGER_OPTIONS
JOB_FIELDS = tuple(_ALL_OPTIONS)


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of a job to a click command; their values are for ``launch``."""
    for option in reversed(_ALL_OPTIONS.values()):
        command = option(command)
    return command
