"""Torchrun's own options, in both of its spellings, so that its command lines run unchanged."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

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
    """A number of ranks, or ``auto``, ``gpu`` or ``cpu``: one for each GPU or processor.

    Raises:
        ValueError: the text is none of these, or ``gpu`` finds none.
    """
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
    """A number of nodes; torchrun's range only where both ends are the same.

    Raises:
        ValueError: the text is neither.
    """
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
    """Fields of ``Job`` that follow from torchrun's options.

    Args:
        options: values of ``TORCHRUN_OPTIONS`` by name.
        endpoint: that was given as HOST:PORT; empty for none.
        nnodes: nodes of the job.

    Raises:
        ValueError: options contradict each other, or a setting is not KEY=VALUE.
    """
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
