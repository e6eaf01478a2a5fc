"""The options of a job on the command line: what runs, what the job is, and where its events go."""

import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from lockstep_cli.options import DurationRange, FiniteRange, Parsed
from lockstep_outcomes.progress.hangs import HANG_TIMEOUT_SECONDS, PAUSE_TIMEOUT_SECONDS
from lockstep_records.text.durations import format_duration

_MIN_PORT, _MAX_PORT = 1, 65535
_DEFAULT_PORT = 29500
# Of torchrun's options those that Lockstep's launcher decides itself.
_PET_ONLY = frozenset(
    (
        "PET_MONITOR_INTERVAL",
        "PET_START_METHOD",
        "PET_EVENT_LOG_HANDLER",
        "PET_ROLE",
        "PET_NO_PYTHON",
        "PET_RUN_PATH",
        "PET_REDIRECTS",
        "PET_TEE",
        "PET_LOCAL_RANKS_FILTER",
        "PET_DUPLICATE_STDOUT_FILTERS",
        "PET_DUPLICATE_STDERR_FILTERS",
        "PET_SIGNALS_TO_HANDLE",
        "PET_SHUTDOWN_TIMEOUT",
        "PET_VIRTUAL_LOCAL_RANK",
    )
)


def torchrun_option(name: str, help_text: str, *own: str, **settings: Any) -> Any:
    """An option of torchrun, which Kubeflow sets as PET_NAME; ``own`` is Lockstep's flag for it."""
    parameter = own[0][2:].replace("-", "_") if own else name
    flags = (*own, *spellings(name), parameter)
    return click.option(*flags, envvar=f"PET_{name.upper()}", help=help_text, **settings)


def spellings(name: str) -> tuple[str, ...]:
    """``--max-restarts`` and ``--max_restarts``: torchrun knows both, and scripts hold either."""
    dashed = f"--{name.replace('_', '-')}"
    return tuple(dict.fromkeys((dashed, f"--{name}")))


def read_rank_count(text: str) -> int:
    """A number of ranks, or ``auto``, ``gpu`` or ``cpu``: one for each there is; or ValueError."""
    if text.isdecimal() and int(text) > 0:
        return int(text)
    if text not in {"auto", "gpu", "cpu"}:
        raise ValueError(f"{text!r} is not a number of ranks; give 1 or more, auto, gpu or cpu.")
    num_gpus = 0 if text == "cpu" else _num_gpus()
    if text == "gpu" and not num_gpus:
        raise ValueError("'gpu': torch finds no GPU on this node; give a number, or cpu.")
    return num_gpus or os.cpu_count() or 1


def _num_gpus() -> int:
    import torch  # noqa: PLC0415  # a number on the command line need not wait for it

    return torch.cuda.device_count()


def read_node_count(text: str) -> int:
    """A number of nodes, or torchrun's range where both ends are the same; or ValueError."""
    least, _, most = text.partition(":")
    if not least.isdecimal() or int(least) < 1 or most not in {"", least}:
        raise ValueError(
            f"{text!r}: give one number of nodes, 1 or more; a range is not supported."
        )
    return int(least)


TORCHRUN_OPTIONS = {
    "standalone": torchrun_option(
        "standalone", "One node with a rendezvous of its own, as without --endpoint.", is_flag=True
    ),
    "rdzv_backend": torchrun_option(
        "rdzv_backend",
        "Kind of rendezvous; static needs --node-rank and --master-addr.",
        type=click.Choice(["c10d", "static"]),
    ),
    "rdzv_conf": torchrun_option(
        "rdzv_conf", "Settings of the rendezvous.", metavar="KEY=VALUE,...", default=""
    ),
    "node_rank": torchrun_option(
        "node_rank",
        "Rank of this node; the node of rank 0 holds the rendezvous.",
        type=click.IntRange(0),
    ),
    "master_addr": torchrun_option(
        "master_addr", "Host of the node of rank 0; with --master-port as --endpoint.", default=""
    ),
    "master_port": torchrun_option(
        "master_port",
        "Port of the rendezvous there; 29500 by default.",
        type=click.IntRange(_MIN_PORT, _MAX_PORT),
    ),
    "local_addr": torchrun_option(
        "local_addr", "Address of this node for the others; by default its name.", default=""
    ),
    "log_dir": torchrun_option(
        "log_dir",
        "Folder of torchrun's logs; the job's folder by default.",
        type=click.Path(path_type=Path, file_okay=False),
    ),
}


def rendezvous_fields(options: Mapping[str, Any], endpoint: str, nnodes: int) -> dict[str, Any]:
    """Fields of ``Job`` by ``TORCHRUN_OPTIONS`` and an endpoint; ValueError in contradiction."""
    if options["standalone"]:
        if nnodes > 1:
            raise ValueError(f"--standalone is one node, and --nnodes is {nnodes}; leave one out")
        endpoint = ""
    else:
        endpoint = _endpoint(options, endpoint)
    settings = _settings(options["rdzv_conf"])
    if options["node_rank"] is not None:
        settings["is_host"] = str(options["node_rank"] == 0)
    elif options["rdzv_backend"] == "static" and nnodes > 1:
        raise ValueError("--rdzv-backend static needs --node-rank; give it, or take c10d")
    if ignored := sorted(_PET_ONLY & os.environ.keys()):
        click.echo(f"lockstep: no effect here: {', '.join(ignored)}", err=True)
    return {
        "endpoint": endpoint,
        "rendezvous": settings,
        "local_address": options["local_addr"],
        "log_folder": options["log_dir"],
    }


def _endpoint(options: Mapping[str, Any], endpoint: str) -> str:
    """Where the nodes meet, by --endpoint or by the address of the node of rank 0."""
    address, port = options["master_addr"], options["master_port"]
    # As for torchrun, what Kubeflow sets for every job yields to what the job says.
    is_default = address == os.environ.get("PET_MASTER_ADDR")
    if not (address or port) or (endpoint and is_default):
        return endpoint
    if endpoint:
        raise ValueError("--master-addr and --endpoint name the same; leave one out")
    return f"{address or 'localhost'}:{port or _DEFAULT_PORT}"


def _settings(text: str) -> dict[str, str]:
    settings = {}
    for part in filter(None, text.split(",")):
        key, separator, value = part.partition("=")
        if not separator or not key.strip():
            raise ValueError(f"--rdzv-conf: {part!r} is not KEY=VALUE")
        settings[key.strip()] = value.strip()
    return settings


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
    "nproc_per_node": torchrun_option(
        "nproc_per_node",
        "Ranks on this node: a number, auto, gpu or cpu.",
        type=Parsed("count", read_rank_count),
        default=1,
        show_default=True,
    ),
    "nnodes": torchrun_option(
        "nnodes",
        "Nodes of the job; all start this command with the same --job-id and --endpoint.",
        type=Parsed("count", read_node_count),
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
        "--cluster", default="local", show_default=True, help="Name of the cluster, a label."
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
        help="Report a hang (the job goes on) after that long without progress; 0s = do not watch.",
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
_ALL_OPTIONS = _JOB_OPTIONS | TORCHRUN_OPTIONS | DESCRIPTION_OPTIONS | LEDGER_OPTIONS
JOB_FIELDS = tuple(_ALL_OPTIONS)


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of a job to a click command; their values are for ``launch``."""
    for option in reversed(_ALL_OPTIONS.values()):
        command = option(command)
    return command
