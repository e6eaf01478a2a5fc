"""The options of the agent: the one list that command line, configuration file and code share."""
# ruff: noqa: RUF009  # option is dataclasses.field with a command-line option as metadata

import platform
import re
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import click

from lockstep_agent.collector import COLLECTORS
from lockstep_agent.health.judge import Expectations, ExpectedPort, read_port
from lockstep_agent.sources.dcgm import EMBEDDED
from lockstep_catalogue.labels import CLUSTER, NODE
from lockstep_catalogue.limits import DECLARED
from lockstep_catalogue.windows import MAX_SCRAPE_SECONDS, MIN_SCRAPES
from lockstep_cli.options import DurationRange, Parsed, read_address
from lockstep_outcomes.progress.hangs import (
    HANG_TIMEOUT_SECONDS,
    PAUSE_TIMEOUT_SECONDS,
    HangTimeouts,
)
from lockstep_records.distribution import install_hint
from lockstep_records.files.jobs import Roots, find_root, plain_roots
from lockstep_records.text.durations import format_duration

_DCGM_HOST = re.compile(
    r"[A-Za-z0-9._-]{1,255}(?::(?P<port>[0-9]{1,5}))?|\[[0-9A-Fa-f:.]{2,45}\](?::\d{1,5})?"
)
_DCGM_SOCKET = re.compile(r"unix:/[^\0]{1,100}")
Command = TypeVar("Command", bound=Callable[..., Any])
_OPTION = "option"
_DAY_SECONDS = 86_400.0
_MIN_LINGER_SECONDS = 60.0
_TICKS_PER_SCRAPE = 5
_MIN_TICK_SECONDS, _MAX_TICK_SECONDS = 1.0, 2.0
_MAX_GPUS = 1024
_PATH = click.Path(path_type=Path)
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def check_roots(
    _ctx: click.Context, _parameter: click.Parameter, value: tuple[Path, ...]
) -> tuple[Path, ...]:
    """The folders of jobs, which need not exist yet; the parent of one that has no star must."""
    roots = tuple(dict.fromkeys(root.absolute() for root in value)) or (find_root(),)
    for root in plain_roots(roots):
        if not root.parent.is_dir() or (root.exists() and not root.is_dir()):
            raise click.BadParameter(
                f"{root} cannot hold jobs; give a folder whose parent folder exists"
            )
    return roots


def check_name(value: str) -> str:
    """A name that can be the value of a label; ValueError where it cannot be one."""
    if not value or not value.isprintable():
        raise ValueError(f"{value!r} cannot be a label; give a printable name")
    return value


def check_collector(value: str) -> str:
    """The name of a collector.

    Raises:
        ValueError: no collector has it; the text has the names that are nearest.
    """
    if value not in COLLECTORS:
        near = ", ".join(get_close_matches(value, COLLECTORS, cutoff=0))
        raise ValueError(f"{value!r} is unknown; the nearest collectors are {near}")
    return value


def check_url(value: str) -> str:
    """An address for HTTP; ValueError where it is none."""
    if not value.startswith(("http://", "https://")):
        raise ValueError(f"{value!r} is not an address; give one that begins with http://")
    return value


def check_dcgm(value: str) -> str | None:
    """An engine of libdcgm; None for ``off``. ValueError where it is neither."""
    if value == "off":
        return None
    if value == EMBEDDED or _DCGM_HOST.fullmatch(value) or _DCGM_SOCKET.fullmatch(value):
        return value
    raise ValueError(f"{value!r} is not an engine; give off, embedded, HOST[:PORT] or unix:/PATH")


def check_archive(value: str) -> str:
    """An address that fsspec can write, with the package that its scheme needs.

    Raises:
        ValueError: it cannot, or the package is missing.
    """
    if missing := [name for name in ("fsspec", "pyarrow", "msgspec") if find_spec(name) is None]:
        raise ValueError(f"it needs {' and '.join(missing)}; {install_hint('archive')}")
    from fsspec import available_protocols  # noqa: PLC0415  # only who archives pays for it
    from fsspec.registry import known_implementations  # noqa: PLC0415  # the same

    for part in value.split("::"):  # a chain of file systems, as in simplecache::s3://bucket
        scheme, separator, _ = part.partition("://")
        if separator and scheme not in available_protocols():
            schemes = ", ".join(sorted(available_protocols()))
            raise ValueError(f"{value!r} has an unknown scheme; known are {schemes}")
        package = known_implementations[scheme]["class"].partition(".")[0] if separator else ""
        if package and find_spec(package) is None:
            raise ValueError(f"{value!r} needs the package {package}; install it")
    return value


def option(default: Any, help_text: str, metavar: str | None = None, /, **settings: Any) -> Any:
    """A field with its default, or what gives it, and with the option that sets it.

    Args:
        default: of the field.
        help_text: of the option.
        metavar: what the option's value is called, where its type does not say.
        settings: others of click's; ``flag`` where it is not the field's name.
    """
    metadata = {_OPTION: settings | {"help": help_text, "metavar": metavar}}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def path(
    default: str | None,
    help_text: str,
    metavar: str | None = "PATH",
    kind: click.Path = _PATH,
    /,
    **settings: Any,
) -> Any:
    """A field and option that is a path."""
    value = None if default is None else Path(default)
    return option(value, help_text, metavar, type=kind, **settings)


def duration(
    default: float | None,
    help_text: str,
    least: float = 0.0,
    most: float = _DAY_SECONDS,
    /,
    **settings: Any,
) -> Any:
    """A field in seconds whose option is a duration."""
    return option(default, help_text, type=DurationRange(least, most), **settings)


def click_option(option_field: "Field[Any]") -> Callable[[Command], Command]:
    """The decorator that gives a command the option of a field."""
    settings = dict(option_field.metadata[_OPTION])
    plain = option_field.name.removesuffix("_seconds").replace("_", "-")
    flag = settings.pop("flag", f"--{plain}")
    default = _default_text(option_field.default)
    if default is not None and not settings.get("is_flag"):
        settings = {"default": default, "show_default": True} | settings
    return click.option(flag, option_field.name, **settings)


def _default_text(default: Any) -> Any:
    """A default as written on the command line; None without one."""
    if default is MISSING or default == ():
        return None
    if isinstance(default, float):
        return format_duration(default)
    return str(default) if isinstance(default, Path) else default


_LABEL_VALUE, _URL = Parsed("TEXT", check_name), Parsed("URL", check_url)


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Options of one agent, checked; the help text of a field describes it."""

    listen: tuple[str, int] = option(
        ("127.0.0.1", 9440),
        "Address to listen on; port 0 takes any free one.",
        type=Parsed("HOST:PORT", read_address),
        default="127.0.0.1:9440",
    )
    root: Roots = option(
        find_root,
        "Folder that holds jobs/, which may be created later; repeatable, and with a star in "
        "it the volumes of many pods.  [default: LOCKSTEP_DIR, /run/lockstep]",
        "ROOT",
        callback=check_roots,
        flag="--dir",
        type=_PATH,
        multiple=True,
    )
    pod_logs: Path = path(
        "/var/log/pods",
        "The kubelet's folder of the logs of pods, which names them; it need not exist.",
        "FOLDER",
    )
    cluster: str = option(
        "local", "Name of the cluster.", type=_LABEL_VALUE, envvar="LOCKSTEP_CLUSTER"
    )
    node: str = option(
        platform.node,
        "Name of this machine.",
        type=_LABEL_VALUE,
        default=platform.node,
        envvar="LOCKSTEP_NODE",
        show_default="host name",
    )
    tick_seconds: float | None = duration(
        None,
        "Interval between two samples.  [default: a fifth of a scrape's, 1s to 2s]",
        0.05,
        60.0,
    )
    scrape_seconds: float = duration(
        float(DECLARED.scrape_seconds),
        "Time between scrapes: the window for minimum, mean and maximum.",
        1.0,
        MAX_SCRAPE_SECONDS,
        flag="--scrape-interval",
        envvar="LOCKSTEP_SCRAPE_INTERVAL",
    )
    linger_seconds: float | None = duration(
        None, "How long the series of a job stay after its end.  [default: 4 scrapes, 1m at least]"
    )
    hang_timeout_seconds: float = duration(
        HANG_TIMEOUT_SECONDS,
        "Time without progress after which a rank hangs, at least 20 median steps; "
        "0s = do not watch.",
    )
    pause_timeout_seconds: float = duration(
        PAUSE_TIMEOUT_SECONDS,
        "The time-out in initialisation, checkpoint, evaluation, restore; 0s = do not watch.",
    )
    detail: bool = option(
        False, "Serve rare counters too; a node may exceed 2,000 series.", is_flag=True
    )
    without: tuple[str, ...] = option(
        (),
        f"Collector to leave out; repeatable. The collectors: {', '.join(COLLECTORS)}.",
        type=Parsed("NAME", check_collector),
        multiple=True,
    )
    kmsg: Path = path("/dev/kmsg", "The kernel log: the device, or a plain file.")
    fabric_manager_log: Path = path(
        "/var/log/fabricmanager.log", "Log of the fabric manager; it need not exist."
    )
    kubelet: Path = path(
        "/var/lib/kubelet/pod-resources/kubelet.sock",
        "Socket of the kubelet's pod-resources service; it need not exist.",
        "SOCKET",
    )
    job_files: Path | None = path(
        None,
        "Folder in which a Slurm prolog writes the job ids of each GPU, one file a GPU.",
        "FOLDER",
        _FOLDER,
    )
    ledger: str | None = option(None, "Deliver the events of jobs to this address.", type=_URL)
    ledger_token: Path | None = path(
        None,
        "File that holds the token of a writer of the ledger; it may change.",
        "FILE",
        _FILE,
        flag="--ledger-token-file",
    )
    ledger_ca: Path | None = path(
        None,
        "Certificates by which an https ledger is trusted.  [default: the system's]",
        "FILE",
        _FILE,
    )
    archive: str | None = option(
        None,
        "Copy the pages and events of jobs to a folder or to an fsspec URL.",
        type=Parsed("URL", check_archive),
    )
    state: Path | None = path(
        "/var/lib/lockstep",
        "Folder for counters and events that outlive the agent.",
        "FOLDER",
        click.Path(path_type=Path, file_okay=False),
        envvar="STATE_DIRECTORY",
    )
    sysfs: Path = path("/sys", "Where /sys is mounted.", None, _FOLDER)
    procfs: Path = path("/proc", "Where /proc is mounted.", None, _FOLDER)
    nvml_library: Path | None = path(
        None,
        "NVML library to load.  [default: libnvidia-ml.so.1 of the loader's search path]",
        "PATH",
        _FILE,
    )
    dcgm_exporter: str | None = option(
        None,
        "Take over the series of a dcgm-exporter, such as http://127.0.0.1:9400/metrics.",
        type=_URL,
    )
    dcgm: str | None = option(
        None,
        "Profile GPUs before Hopper by libdcgm: embedded, HOST[:PORT] or unix:/PATH.",
        type=Parsed("ENGINE", check_dcgm),
        default="off",
        show_default=True,
    )
    dcgm_library: Path | None = path(
        None,
        "libdcgm to load.  [default: libdcgm.so.4 or .3 of the loader's search path]",
        "PATH",
        _FILE,
    )
    expect_gpus: int | None = option(
        None,
        "Number of GPUs that the node must have.  [default: the most that were seen]",
        "NUMBER",
        type=click.IntRange(0, _MAX_GPUS),
    )
    expect_port: tuple[ExpectedPort, ...] = option(
        (),
        "Port that must be up, at this rate; repeatable.  [default: ports that were up]",
        type=Parsed("DEVICE[:GIGABITS]", read_port),
        multiple=True,
    )
    web_config: Path | None = path(
        None, "Web configuration file of Prometheus' exporters: TLS, users, headers.", "FILE", _FILE
    )
    bearer_token_file: Path | None = path(
        None, "File of the tokens that may scrape, one a line.", "FILE", _FILE
    )

    @property
    def host(self) -> str:
        """Address to listen on."""
        return self.listen[0]

    @property
    def port(self) -> int:
        """Port to listen on, 0 for any free one."""
        return self.listen[1]

    @property
    def identity(self) -> dict[str, str]:
        """The labels of every series of this agent."""
        return {CLUSTER.name: self.cluster, NODE.name: self.node}

    @property
    def tick(self) -> float:
        """Seconds between two samples: what is sampled five times for one scrape is fresh."""
        if self.tick_seconds is not None:
            return self.tick_seconds
        fifth = self.scrape_seconds / _TICKS_PER_SCRAPE
        return min(max(fifth, _MIN_TICK_SECONDS), _MAX_TICK_SECONDS)

    @property
    def linger(self) -> float:
        """Seconds for which the series of a job stay after its end: each is scraped in its end."""
        if self.linger_seconds is not None:
            return self.linger_seconds
        return max(_MIN_LINGER_SECONDS, MIN_SCRAPES * self.scrape_seconds)

    @property
    def hang_timeouts(self) -> HangTimeouts:
        """The time-outs of ranks that have none of their own."""
        return HangTimeouts(
            step_seconds=self.hang_timeout_seconds, pause_seconds=self.pause_timeout_seconds
        )

    @property
    def expected(self) -> Expectations:
        """What the node must have."""
        return Expectations(gpus=self.expect_gpus, ports=self.expect_port)


def command_options(*names: str) -> Callable[[Command], Command]:
    """A decorator that gives a command the options of these fields, of all where none is named."""
    chosen = [each for each in fields(Options) if not names or each.name in names]

    def decorate(command: Command) -> Command:
        for each in reversed(chosen):  # click lists the last decorator first
            command = click_option(each)(command)
        return command

    return decorate
