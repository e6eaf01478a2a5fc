"""Write what a site installs: systemd units, scripts of Slurm, or objects of Kubernetes."""

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import click

from lockstep_cli.deploy.shipped import deploy_options, write_shipped
from lockstep_cli.options import option
from lockstep_records.file_access.atomic_file import write_atomically

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_PATH = re.compile(r"/[A-Za-z0-9._/+-]*")
_URL = re.compile(r"https?://[A-Za-z0-9._:\[\]/-]+")
_KUBERNETES_TARGETS = ("access", "kubernetes")
_PATH_OPTIONS = ("program", "gpu_map", "slurm_conf", "token_file", "targets", "writable")
_FORMS = {
    "cluster": (_NAME, "a name of letters, digits, dots and dashes"),
    "group": (_NAME, "the name of a group"),
    "partitions": (_NAME, "the name of a partition"),
    **dict.fromkeys(_PATH_OPTIONS, (_PATH, "an absolute path without blanks")),
    "ledger": (_URL, "an address such as https://ledger.example:9450"),
}


class _Deployments(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        has_packages = find_spec("msgspec") and find_spec("httpx") and find_spec("yaml")
        return sorted([*super().list_commands(ctx), *(_KUBERNETES_TARGETS if has_packages else ())])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _KUBERNETES_TARGETS:
            return super().get_command(ctx, cmd_name)
        from lockstep_cli.deploy import kubernetes  # noqa: PLC0415  # what needs its packages

        command: click.Command = getattr(kubernetes, f"deploy_{cmd_name}")
        return command


@click.group(cls=_Deployments)
def deploy() -> None:
    """Write the files by which a site installs Lockstep."""


@deploy.command("systemd")
@deploy_options
def deploy_systemd(*, folder: Path, systemd: int | None, program: str) -> None:
    """Write units of agent, canary and ledger for machines without Kubernetes."""
    _check("--command", "program", program)
    paths = write_shipped("systemd", folder, {}, systemd)
    for path in paths:
        text = path.read_text(encoding="utf-8")
        write_atomically(path, text.replace("/opt/lockstep/bin/lockstep", program))
        click.echo(path)


@deploy.command("slurm")
@deploy_options
@option("--cluster", default="local", help="Name of the cluster.")
@option("--ledger", default="http://127.0.0.1:9450", help="The ledger.")
@option(
    "--token-file",
    default="/etc/lockstep/slurm-feed-token",
    help="File with the feed's token, of scope scheduler.",
)
@click.option("--partition", "partitions", multiple=True, help="Feed these alone; repeatable.")
@option("--gpu-map", default="/var/lib/dcgm-exporter/job-mapping", help="Folder of the GPU map.")
@click.option("--expect-gpus", type=click.IntRange(1), help="GPUs of a node; fewer are a fault.")
@option("--agent-port", type=click.IntRange(1, 65535), default=9440)
@option(
    "--writable",
    multiple=True,
    default=("/", "/run/lockstep", "/tmp", "/var"),  # noqa: S108  # looked at, not written
    help="File system that is a fault where it is read-only; repeatable.",
)
@click.option("--slurm-conf", default="", help="Path of slurm.conf, where Slurm does not find it.")
@option("--group", default="lockstep", help="Group that reads pages: the agent's.")
@option(
    "--targets",
    default="/etc/prometheus/lockstep-nodes.json",
    help="File of targets that Prometheus reads.",
)
def deploy_slurm(
    *, folder: Path, systemd: int | None, expect_gpus: int | None, agent_port: int, **given: object
) -> None:
    """Write prolog, epilog, task prolog, health check, targets and the feed for Slurm."""
    for name, value in given.items():
        for text in value if isinstance(value, tuple) else (value,):
            if text or name != "slurm_conf":
                _check(f"--{name.replace('_', '-')}", name, str(text))
    partitions, writable = given.pop("partitions"), given.pop("writable")
    assert isinstance(partitions, tuple)
    assert isinstance(writable, tuple)
    values = {name.upper(): str(value) for name, value in given.items()} | {
        "COMMAND": str(given["program"]),
        "EXPECT_GPUS": str(expect_gpus or ""),
        "AGENT_PORT": str(agent_port),
        "PARTITIONS": " ".join(f"--partition {name}" for name in partitions),
        "WRITABLE": shlex.quote(" ".join(writable)),
        "TO": str(folder.resolve()),
    }
    for path in write_shipped("slurm", folder, values, systemd):
        click.echo(path)


def _check(flag: str, name: str, text: str) -> None:
    form, words = _FORMS[name]
    if not form.fullmatch(text):
        raise click.UsageError(f"{flag} {text!r} is not {words}")
