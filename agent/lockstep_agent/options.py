"""Everything the agent can be told, checked by the command before it gets here."""

from dataclasses import dataclass, field
from pathlib import Path

from lockstep_agent.health.expected import Expectations
from lockstep_records.hangs import HANG_TIMEOUT_SECONDS


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Options of one agent.

    Attributes:
        host: address to listen on.
        port: port to listen on, 0 for any free one.
        root: folder that holds ``jobs/``.
        node: name of this machine, the value of the label ``node``.
        tick_seconds: time from one sampling to the next.
        linger_seconds: how long a job's series stay after its end.
        window_seconds: over which lowest, mean and highest values of a GPU are told.
        dcgm_exporter: address of a dcgm-exporter to take over; None for none.
        detail: tells rare counters too, beyond the budget of series.
        nvml_library: the NVML library; None leaves it to the loader's search.
        expected: what the node must have.
        web_config: web configuration file of TLS and passwords; None for neither.
        tokens: file of bearer tokens; None for none.
        kmsg: the kernel log, the device or a plain file.
        fabric_manager_log: log of the fabric manager, which need not exist.
        kubelet: socket of the kubelet's pod-resources service, which need not exist.
        job_files: folder in which a Slurm prolog notes the jobs of each GPU; None for none.
        ledger: address that job events are delivered to; None keeps them on the node.
        archive: address that finished pages are copied to; None for none.
        state: folder of what outlives the agent; None keeps nothing.
        dcgm: engine of libdcgm: ``embedded``, its address, or None for none.
        dcgm_library: the libdcgm to load; None leaves it to the loader's search.
        hang_seconds: no progress of a rank for so long, at least, is a hang; 0 judges none.
    """

    host: str
    port: int
    root: Path
    cluster: str
    node: str
    tick_seconds: float
    linger_seconds: float
    window_seconds: float
    sysfs: Path
    procfs: Path
    nvml_library: Path | None
    dcgm_exporter: str | None = None
    expected: Expectations = field(default_factory=Expectations)
    web_config: Path | None = None
    tokens: Path | None = None
    detail: bool = False
    kmsg: Path = Path("/dev/kmsg")
    fabric_manager_log: Path = Path("/var/log/fabricmanager.log")
    kubelet: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    job_files: Path | None = None
    ledger: str | None = None
    archive: str | None = None
    state: Path | None = None
    dcgm: str | None = None
    dcgm_library: Path | None = None
    hang_seconds: float = HANG_TIMEOUT_SECONDS
