"""Serve what this node's GPUs, network ports and ranks tell, for Prometheus to scrape."""

import platform
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from lockstep_agent.dcgm_options import DCGM, DCGM_LIBRARY
from lockstep_agent.health.expected import Expectations, ExpectedPort, read_port
from lockstep_agent.options import Options
from lockstep_agent.settings import load_settings
from lockstep_records.distribution import install_hint
from lockstep_records.hangs import HANG_TIMEOUT_SECONDS
from lockstep_records.jobs import find_root
from lockstep_records.options import read_address

_TICK_SECONDS = (0.05, 60.0)
_LINGER_SECONDS = (0.0, 86_400.0)
_WINDOW_SECONDS = (1.0, 300.0)
_LIMITS = {
    "tick_seconds": _TICK_SECONDS,
    "linger_seconds": _LINGER_SECONDS,
    "window_seconds": _WINDOW_SECONDS,
    "hang_seconds": _LINGER_SECONDS,
}


def _listen(_ctx: click.Context, _parameter: click.Parameter, value: str) -> tuple[str, int]:
    try:
        return read_address(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _root(_ctx: click.Context, _parameter: click.Parameter, value: Path | None) -> Path:
    root = value or find_root()
    if not root.parent.is_dir() or (root.exists() and not root.is_dir()):
        raise click.BadParameter(
            f"{root} cannot hold jobs; give a folder whose parent folder exists"
        )
    return root


def _seconds(_ctx: click.Context, parameter: click.Parameter, value: float) -> float:
    low, high = _LIMITS[parameter.name or ""]
    if not low <= value <= high:
        raise click.BadParameter(f"{value} is not between {low} and {high} seconds")
    return value


def _name(_ctx: click.Context, _parameter: click.Parameter, value: str) -> str:
    if not value or not value.isprintable():
        raise click.BadParameter(f"{value!r} cannot be a label; give a printable name")
    return value


def _url(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not value.startswith(("http://", "https://")):
        raise click.BadParameter(f"{value!r} is no address; give one that begins with http://")
    return value


def _ports(
    _ctx: click.Context, _parameter: click.Parameter, value: tuple[str, ...]
) -> tuple[ExpectedPort, ...]:
    try:
        return tuple(read_port(told) for told in value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _archive(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    if find_spec("fsspec") is None:
        raise click.BadParameter(f"it needs fsspec; {install_hint('archive')}")
    from fsspec import available_protocols  # noqa: PLC0415  # only who archives pays for it
    from fsspec.registry import known_implementations  # noqa: PLC0415  # the same

    for part in value.split("::"):  # as in simplecache::s3://bucket
        scheme, named, _ = part.partition("://")
        if named and scheme not in available_protocols():
            known = ", ".join(sorted(available_protocols()))
            raise click.BadParameter(f"{value!r} has an unknown scheme; known are {known}")
        package = known_implementations[scheme]["class"].partition(".")[0] if named else "fsspec"
        if find_spec(package) is None:
            raise click.BadParameter(f"{value!r} needs the package {package}; install it")
    return value


_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_MOST_GPUS = 1024
SYSFS = click.option(
    "--sysfs", type=_FOLDER, default="/sys", show_default=True, help="Where /sys is."
)
PROCFS = click.option(
    "--procfs", type=_FOLDER, default="/proc", show_default=True, help="Where /proc is."
)
NVML_LIBRARY = click.option(
    "--nvml-library",
    metavar="PATH",
    type=_FILE,
    help="NVML library to load.  [default: libnvidia-ml.so.1, as the loader finds it]",
)
EXPECT_GPUS = click.option(
    "--expect-gpus",
    metavar="NUMBER",
    type=click.IntRange(0, _MOST_GPUS),
    help="GPUs that the node must have.  [default: as many as were seen]",
)
EXPECT_PORT = click.option(
    "--expect-port",
    metavar="DEVICE[:GIGABITS]",
    multiple=True,
    callback=_ports,
    help="Port that must be up, at this rate; more than once.  [default: those once up]",
)


@click.command()
@click.option(
    "--config",
    metavar="FILE",
    type=_FILE,
    callback=load_settings,
    is_eager=True,
    expose_value=False,
    help="TOML file of these options, dashes as underscores; what is told here comes first.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:9440",
    show_default=True,
    callback=_listen,
    help="Where to serve; port 0 takes any free one.",
)
@click.option(
    "--dir",
    "root",
    metavar="ROOT",
    type=click.Path(path_type=Path),
    callback=_root,
    help="Folder that holds jobs/; it may come later.  [default: LOCKSTEP_DIR, /dev/shm/lockstep]",
)
@click.option(
    "--cluster",
    default="local",
    envvar="LOCKSTEP_CLUSTER",
    show_default=True,
    callback=_name,
    help="Name of the cluster.",
)
@click.option(
    "--node",
    default=platform.node,
    envvar="LOCKSTEP_NODE",
    show_default="host name",
    callback=_name,
    help="Name of this machine.",
)
@click.option(
    "--tick",
    "tick_seconds",
    metavar="SECONDS",
    default=1.0,
    show_default=True,
    callback=_seconds,
    help="Time from one sampling to the next.",
)
@click.option(
    "--linger",
    "linger_seconds",
    metavar="SECONDS",
    default=60.0,
    show_default=True,
    callback=_seconds,
    help="How long the series of a job stay after its end.",
)
@click.option(
    "--window",
    "window_seconds",
    metavar="SECONDS",
    default=15.0,
    show_default=True,
    callback=_seconds,
    help="Over which lowest, mean and highest are told; best the scrape interval.",
)
@click.option(
    "--hang-seconds",
    metavar="SECONDS",
    default=HANG_TIMEOUT_SECONDS,
    show_default=True,
    callback=_seconds,
    help="No progress of a rank for so long, and for 20 median steps, is a hang; 0 judges none.",
)
@click.option("--once", is_flag=True, help="Print one scrape on stdout and end.")
@click.option(
    "--detail", is_flag=True, help="Tell rare counters too; a node may pass 2,000 series."
)
@click.option(
    "--kmsg",
    metavar="PATH",
    type=click.Path(path_type=Path),
    default="/dev/kmsg",
    show_default=True,
    help="The kernel log: the device, or a plain file.",
)
@click.option(
    "--fabric-manager-log",
    metavar="PATH",
    type=click.Path(path_type=Path),
    default="/var/log/fabricmanager.log",
    show_default=True,
    help="Log of the fabric manager; it need not exist.",
)
@click.option(
    "--kubelet",
    metavar="SOCKET",
    type=click.Path(path_type=Path),
    default="/var/lib/kubelet/pod-resources/kubelet.sock",
    show_default=True,
    help="The kubelet's pod-resources service; it need not exist.",
)
@click.option(
    "--job-files",
    metavar="FOLDER",
    type=_FOLDER,
    help="Where a Slurm prolog writes the job ids of each GPU, one file a GPU.",
)
@click.option(
    "--ledger",
    metavar="URL",
    callback=_url,
    help="Deliver the events of jobs to this address.",
)
@click.option(
    "--archive",
    metavar="URL",
    callback=_archive,
    help="Copy the pages and events of jobs there: a folder, or what fsspec can write.",
)
@click.option(
    "--state",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="STATE_DIRECTORY",
    default="/var/lib/lockstep",
    show_default=True,
    help="Where counters that outlive the agent are kept.",
)
@SYSFS
@PROCFS
@NVML_LIBRARY
@click.option(
    "--dcgm-exporter",
    metavar="URL",
    callback=_url,
    help="Take over what this dcgm-exporter serves, such as http://127.0.0.1:9400/metrics.",
)
@DCGM
@DCGM_LIBRARY
@EXPECT_GPUS
@EXPECT_PORT
@click.option(
    "--web-config",
    metavar="FILE",
    type=_FILE,
    help="Web configuration file of Prometheus' exporters: TLS, users, headers.",
)
@click.option(
    "--bearer-token-file",
    "tokens",
    metavar="FILE",
    type=_FILE,
    help="Tokens that may scrape, one a line.",
)
def agent(
    *,
    listen: tuple[str, int],
    once: bool,
    expect_gpus: int | None,
    expect_port: tuple[ExpectedPort, ...],
    **told: Any,
) -> None:
    """Serve what this node's GPUs, network ports and ranks tell, for Prometheus to scrape."""
    from lockstep_agent.runtime import program  # noqa: PLC0415  # --help needs none of the agent's parts

    if once:
        told["state"] = None  # a running agent goes on from what is kept there
    expected = Expectations(gpus=expect_gpus, ports=expect_port)
    options = Options(host=listen[0], port=listen[1], expected=expected, **told)
    if once:
        program.print_once(options)
    else:
        program.serve(options)
