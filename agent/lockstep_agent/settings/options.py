"""The options of the agent: the one list that command line, configuration file and code share."""
# ruff: noqa: RUF009  # option is dataclasses.field with a command-line option as metadata

import platform
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import click

from lockstep_agent.health.expected import Expectations, ExpectedPort
from lockstep_agent.settings import option_checks as checks
from lockstep_agent.settings.option_fields import Command, click_option, option
from lockstep_catalogue.labels import CLUSTER, NODE
from lockstep_catalogue.limits import DECLARED
from lockstep_catalogue.windows import MAX_SCRAPE_SECONDS, MIN_SCRAPES
from lockstep_records.files.jobs import Roots, find_root
from lockstep_records.progress.hangs import HANG_TIMEOUT_SECONDS, PAUSE_TIMEOUT_SECONDS
from lockstep_records.shared.options import DurationRange

_DAY_SECONDS = 86_400.0
_MIN_LINGER_SECONDS = 60.0
_TICKS_PER_SCRAPE = 5
_MIN_TICK_SECONDS, _MAX_TICK_SECONDS = 1.0, 2.0
_MAX_GPUS = 1024
_PATH = click.Path(path_type=Path)
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Options of one agent, checked; the help text of a field describes it."""

    listen: tuple[str, int] = option(
        ("127.0.0.1", 9440),
        "--listen",
        metavar="HOST:PORT",
        default="127.0.0.1:9440",
        callback=checks.check_listen,
        help="Address to listen on; port 0 takes any free one.",
    )
    root: Roots = option(
        find_root,
        "--dir",
        metavar="ROOT",
        type=_PATH,
        multiple=True,
        callback=checks.check_roots,
        help="Folder that holds jobs/, which may be created later; repeatable, and a star in it "
        "stands for the volumes of many pods.  [default: LOCKSTEP_DIR, /run/lockstep]",
    )
    pod_logs: Path = option(
        Path("/var/log/pods"),
        "--pod-logs",
        metavar="FOLDER",
        type=_PATH,
        help="The kubelet's folder of the logs of pods, which names them; it need not exist.",
    )
    cluster: str = option(
        "local",
        "--cluster",
        envvar="LOCKSTEP_CLUSTER",
        callback=checks.check_name,
        help="Name of the cluster.",
    )
    node: str = option(
        platform.node,
        "--node",
        default=platform.node,
        envvar="LOCKSTEP_NODE",
        show_default="host name",
        callback=checks.check_name,
        help="Name of this machine.",
    )
    tick_seconds: float | None = option(
        None,
        "--tick",
        metavar="DURATION",
        type=DurationRange(0.05, 60.0),
        help="Interval between two samples.  [default: a fifth of a scrape's, 1s to 2s]",
    )
    scrape_seconds: float = option(
        float(DECLARED.scrape_seconds),
        "--scrape-interval",
        metavar="DURATION",
        type=DurationRange(1.0, MAX_SCRAPE_SECONDS),
        envvar="LOCKSTEP_SCRAPE_INTERVAL",
        help="Time between scrapes: the window for minimum, mean and maximum.",
    )
    linger_seconds: float | None = option(
        None,
        "--linger",
        metavar="DURATION",
        type=DurationRange(0.0, _DAY_SECONDS),
        help="How long the series of a job stay after its end.  [default: 4 scrapes, 1m at least]",
    )
    hang_timeout_seconds: float = option(
        HANG_TIMEOUT_SECONDS,
        "--hang-timeout",
        metavar="DURATION",
        type=DurationRange(0.0, _DAY_SECONDS),
        help="Time without progress after which a rank hangs, at least 20 median steps; "
        "0s = do not watch.",
    )
    pause_timeout_seconds: float = option(
        PAUSE_TIMEOUT_SECONDS,
        "--pause-timeout",
        metavar="DURATION",
        type=DurationRange(0.0, _DAY_SECONDS),
        help="The time-out in initialisation, checkpoint, evaluation, restore; 0s = do not watch.",
    )
    detail: bool = option(
        False,
        "--detail",
        is_flag=True,
        help="Serve rare counters too; a node may exceed 2,000 series.",
    )
    kmsg: Path = option(
        Path("/dev/kmsg"),
        "--kmsg",
        metavar="PATH",
        type=_PATH,
        help="The kernel log: the device, or a plain file.",
    )
    fabric_manager_log: Path = option(
        Path("/var/log/fabricmanager.log"),
        "--fabric-manager-log",
        metavar="PATH",
        type=_PATH,
        help="Log of the fabric manager; it need not exist.",
    )
    kubelet: Path = option(
        Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
        "--kubelet",
        metavar="SOCKET",
        type=_PATH,
        help="Socket of the kubelet's pod-resources service; it need not exist.",
    )
    job_files: Path | None = option(
        None,
        "--job-files",
        metavar="FOLDER",
        type=_FOLDER,
        help="Folder in which a Slurm prolog writes the job ids of each GPU, one file a GPU.",
    )
    ledger: str | None = option(
        None,
        "--ledger",
        metavar="URL",
        callback=checks.check_url,
        help="Deliver the events of jobs to this address.",
    )
    ledger_token: Path | None = option(
        None,
        "--ledger-token-file",
        metavar="FILE",
        type=_FILE,
        help="File that holds the token of a writer of the ledger; it may change.",
    )
    ledger_ca: Path | None = option(
        None,
        "--ledger-ca",
        metavar="FILE",
        type=_FILE,
        help="Certificates by which an https ledger is trusted.  [default: the system's]",
    )
    archive: str | None = option(
        None,
        "--archive",
        metavar="URL",
        callback=checks.check_archive,
        help="Copy the pages and events of jobs to a folder or to an fsspec URL.",
    )
    state: Path | None = option(
        Path("/var/lib/lockstep"),
        "--state",
        metavar="FOLDER",
        type=click.Path(path_type=Path, file_okay=False),
        envvar="STATE_DIRECTORY",
        help="Folder for counters and events that outlive the agent.",
    )
    sysfs: Path = option(
        Path("/sys"),
        "--sysfs",
        type=_FOLDER,
        help="Where /sys is mounted.",
    )
    procfs: Path = option(
        Path("/proc"),
        "--procfs",
        type=_FOLDER,
        help="Where /proc is mounted.",
    )
    nvml_library: Path | None = option(
        None,
        "--nvml-library",
        metavar="PATH",
        type=_FILE,
        help="NVML library to load.  [default: libnvidia-ml.so.1 of the loader's search path]",
    )
    dcgm_exporter: str | None = option(
        None,
        "--dcgm-exporter",
        metavar="URL",
        callback=checks.check_url,
        help="Take over the series of a dcgm-exporter, such as http://127.0.0.1:9400/metrics.",
    )
    dcgm: str | None = option(
        None,
        "--dcgm",
        metavar="ENGINE",
        default="off",
        show_default=True,
        callback=checks.check_dcgm,
        help="Profile GPUs before Hopper by libdcgm: embedded, HOST[:PORT] or unix:/PATH.",
    )
    dcgm_library: Path | None = option(
        None,
        "--dcgm-library",
        metavar="PATH",
        type=_FILE,
        help="libdcgm to load.  [default: libdcgm.so.4 or .3 of the loader's search path]",
    )
    expect_gpus: int | None = option(
        None,
        "--expect-gpus",
        metavar="NUMBER",
        type=click.IntRange(0, _MAX_GPUS),
        help="Number of GPUs that the node must have.  [default: the most that were seen]",
    )
    expect_port: tuple[ExpectedPort, ...] = option(
        (),
        "--expect-port",
        metavar="DEVICE[:GIGABITS]",
        multiple=True,
        callback=checks.check_ports,
        help="Port that must be up, at this rate; repeatable.  [default: ports that were up]",
    )
    web_config: Path | None = option(
        None,
        "--web-config",
        metavar="FILE",
        type=_FILE,
        help="Web configuration file of Prometheus' exporters: TLS, users, headers.",
    )
    bearer_token_file: Path | None = option(
        None,
        "--bearer-token-file",
        metavar="FILE",
        type=_FILE,
        help="File of the tokens that may scrape, one a line.",
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
