"""Metrics of the host that training depends on; all others are left to node_exporter."""

from lockstep_catalogue import labels
from lockstep_catalogue.metric import Label, Metric


def _metric(name: str, text: str, source: str, *by: Label, for_users: str = "") -> Metric:
    return Metric(name=name, labels=by, help=text, source=source, for_users=for_users)


_CGROUP = "cgroup of the job's ranks (v2; v1 where that is mounted)"
_STORAGE = "/proc/1/mountstats, /proc/diskstats"

PRESSURE_SECONDS = _metric(
    "lockstep_host_pressure_seconds_total",
    "Seconds in which tasks of the node waited for a resource.",
    "/proc/pressure: total",
    labels.RESOURCE,
    labels.PRESSURE,
)
STEAL_SECONDS = _metric(
    "lockstep_host_cpu_steal_seconds_total",
    "Processor time that the hypervisor gave to other machines, over all processors.",
    "/proc/stat",
    for_users="node_exporter: node_cpu_seconds_total of mode steal",
)
MEMORY_TOTAL = _metric(
    "lockstep_host_memory_total_bytes", "Memory of the node.", "/proc/meminfo: MemTotal"
)
MEMORY_AVAILABLE = _metric(
    "lockstep_host_memory_available_bytes",
    "Memory that can be allocated without swapping.",
    "/proc/meminfo: MemAvailable",
)
JOB_PRESSURE_SECONDS = _metric(
    "lockstep_host_job_pressure_seconds_total",
    "Seconds in which tasks of the job on this node waited for a resource.",
    f"{_CGROUP}: cpu.pressure, memory.pressure, io.pressure",
    labels.JOB_ID,
    labels.RESOURCE,
    labels.PRESSURE,
)
JOB_THROTTLED_SECONDS = _metric(
    "lockstep_host_job_cpu_throttled_seconds_total",
    "Seconds in which the job's limit on processor time kept it from running.",
    f"{_CGROUP}: cpu.stat of the nearest group with a limit",
    labels.JOB_ID,
)
JOB_MEMORY = _metric(
    "lockstep_host_job_memory_bytes",
    "Memory of the job, page cache included, in the cgroup whose limit it would reach first.",
    f"{_CGROUP}: memory.current of the nearest group with a limit",
    labels.JOB_ID,
)
JOB_MEMORY_LIMIT = _metric(
    "lockstep_host_job_memory_limit_bytes",
    "Limit on the memory of the job; absent without one.",
    f"{_CGROUP}: memory.max of the nearest group with a limit",
    labels.JOB_ID,
)
JOB_MEMORY_EVENTS = _metric(
    "lockstep_host_job_memory_events_total",
    "Actions of the kernel because the job reached its limit on memory, by action.",
    f"{_CGROUP}: memory.events; memory.failcnt, memory.oom_control",
    labels.JOB_ID,
    labels.MEMORY_EVENT,
)
_SNMP = "/proc/PID/net/snmp of a rank"
JOB_TCP_SEGMENTS = _metric(
    "lockstep_host_job_tcp_segments_total",
    "TCP segments sent in the network namespace of the job, or by the node where it has none.",
    _SNMP,
    labels.JOB_ID,
)
JOB_TCP_RETRANSMITS = _metric(
    "lockstep_host_job_tcp_retransmits_total",
    "TCP segments sent again in the network namespace of the job, because packets were lost.",
    _SNMP,
    labels.JOB_ID,
)
VOLUME_INFO = _metric(
    "lockstep_host_volume_info",
    "A mounted network file system or block device, always 1.",
    "/proc/1/mountinfo",
    labels.VOLUME,
    labels.FILESYSTEM,
    labels.SOURCE,
    labels.MOUNT_POINT,
)
STORAGE_REQUESTS = _metric(
    "lockstep_host_storage_requests_total",
    "Requests to a volume that completed.",
    _STORAGE,
    labels.VOLUME,
    labels.OPERATION,
)
STORAGE_SECONDS = _metric(
    "lockstep_host_storage_request_seconds_total",
    "Time that requests to a volume took, queue included, summed over requests.",
    _STORAGE,
    labels.VOLUME,
    labels.OPERATION,
)
STORAGE_BYTES = _metric(
    "lockstep_host_storage_bytes_total",
    "Bytes read from or written to a volume.",
    _STORAGE,
    labels.VOLUME,
    labels.OPERATION,
)
STORAGE_BUSY_SECONDS = _metric(
    "lockstep_host_storage_busy_seconds_total",
    "Time in which a block device was busy.",
    "/proc/diskstats",
    labels.VOLUME,
)
STORAGE_RETRANSMISSIONS = _metric(
    "lockstep_host_storage_retransmissions_total",
    "Requests that were resent to a file server.",
    "/proc/1/mountstats",
    labels.VOLUME,
)
STORAGE_TIMEOUTS = _metric(
    "lockstep_host_storage_timeouts_total",
    "Requests that a file server did not answer in time.",
    "/proc/1/mountstats",
    labels.VOLUME,
)
STORAGE_ERRORS = _metric(
    "lockstep_host_storage_errors_total",
    "Requests that a file server answered with an error, or errors of a disk or file system.",
    "/proc/1/mountstats; /sys/class/block/NAME/device/ioerr_cnt; /sys/fs/ext4/NAME/errors_count",
    labels.VOLUME,
)
