"""Verdicts of the agent, the table of Xids, and metrics of the kernel log."""

from dataclasses import dataclass, replace

from lockstep_catalogue.labels import DEVICE, GPU_LABELS, MIG, PCI_BUS_ID, VERDICT
from lockstep_catalogue.metric import Label, Metric, Stability

# Verdicts of the agent on GPUs, expected ports and the node, from its own readings. Every metric
# with the label ``verdict`` is a verdict: the node is as bad as the worst of them.

OK, DEGRADED, FAILED = VERDICT.values
NO_REASON = "none"

GPU_REASON = Label(
    name="gpu_reason",
    help="reason for the verdict on the GPU",
    values=(
        NO_REASON,
        "lost",
        "hung",
        "silent",
        "reset_required",
        "recovery_action",
        "remap_failed",
        "remap_pending",
        "retirement_pending",
        "sram_threshold",
        "uncorrected_ecc",
        "pcie_below_max",
        "nvlink_down",
        "nvlink_slow",
        "fabric_failed",
        "fabric_unhealthy",
        "thermal",
        "power_capped",
        "slowdown",
    ),
)
EXPECTED_REASON = Label(
    name="expected_reason",
    help="how the port differs from what is expected",
    values=(NO_REASON, "missing", "not_up", "rate_below_expected"),
)
NODE_REASON = Label(
    name="node_reason",
    help="reason for the verdict on the node",
    values=(
        NO_REASON,
        "gpu_count_short",
        "driver_absent",
        "driver_hung",
        "gpu_failed",
        "gpu_degraded",
        "port_failed",
        "port_degraded",
    ),
)

GPU_HEALTH = Metric(
    name="lockstep_gpu_health_info",
    labels=(*GPU_LABELS, VERDICT, GPU_REASON),
    help="Verdict on the GPU, always 1 on each reason that holds.",
    source="readings of the GPU, by the thresholds in docs/agent.md",
    stability=Stability.STABLE,
)
EXPECTED_PORT_HEALTH = Metric(
    name="lockstep_fabric_expected_port_health_info",
    labels=(DEVICE, VERDICT, EXPECTED_REASON),
    help="Verdict on a port that the agent is configured to expect, always 1.",
    source="--expect-port against state and rate of the device's ports",
)
NODE_HEALTH = Metric(
    name="lockstep_host_health_info",
    labels=(VERDICT, NODE_REASON),
    help="Verdict on the node, always 1 on each reason that holds.",
    source="the verdicts on its parts, the number of its GPUs",
    stability=Stability.STABLE,
)

# The table of Xids: name, class, severity and first remedy of each. Source: NVIDIA's Xid catalogue
# (docs.nvidia.com/deploy/xid-errors, analyzing-xid-catalog) and the numbers in the open kernel
# module of driver 595. A number that is not here is counted all the same.


@dataclass(frozen=True, slots=True)
class Xid:
    """One number.

    Attributes:
        number: or the name of a failure to which the driver gives none.
        kind: a value of the label ``xid_class``.
        severity: a value of the label ``xid_severity``.
        remedy: a value of the label ``remedy``.
    """

    number: int | str
    name: str
    kind: str
    severity: str
    remedy: str

    @property
    def of_a_process(self) -> bool:
        """Whether each affected process counts as an incident of its own."""
        return self.kind == "application"


XIDS = (
    Xid(8, "GPU stopped processing", "application", "error", "restart_job"),
    Xid(11, "invalid or corrupted push buffer", "application", "error", "restart_job"),
    Xid(13, "graphics engine exception", "application", "error", "restart_job"),
    Xid(31, "GPU memory page fault", "application", "error", "restart_job"),
    Xid(32, "invalid or corrupted push buffer stream", "application", "error", "restart_job"),
    Xid(38, "driver firmware error", "information", "notice", "follow_companion"),
    Xid(39, "copy engine exception", "application", "error", "restart_job"),
    Xid(40, "copy engine exception", "application", "error", "restart_job"),
    Xid(41, "copy engine exception", "application", "error", "restart_job"),
    Xid(43, "GPU stopped processing", "information", "error", "restart_job"),
    Xid(44, "graphics engine fault during context switch", "information", "error", "restart_job"),
    Xid(45, "preemptive cleanup after earlier errors", "information", "notice", "follow_companion"),
    Xid(46, "GPU stopped processing", "hardware", "fatal", "reset_gpu"),
    # Alone it may be contained, which follows from the Xids 94 and 95 beside it.
    Xid(48, "double-bit memory error", "memory", "error", "reset_gpu"),
    Xid(54, "auxiliary power is not connected", "bus", "fatal", "check_hardware"),
    Xid(62, "internal micro-controller halt", "hardware", "fatal", "reset_gpu"),
    Xid(63, "row remapping or page retirement recorded", "memory", "notice", "none"),
    Xid(64, "row remapping or page retirement failed", "memory", "fatal", "reset_gpu"),
    Xid(66, "illegal access by driver", "information", "notice", "none"),
    Xid(67, "illegal access by driver", "information", "notice", "none"),
    Xid(69, "graphics engine class error", "application", "error", "restart_job"),
    Xid(74, "NVLink error", "nvlink", "fatal", "check_link"),
    Xid(78, "vGPU start error", "firmware", "error", "contact_support"),
    Xid(79, "GPU has fallen off the bus", "bus", "fatal", "restart_node"),
    Xid(80, "corrupted data sent to GPU", "application", "error", "restart_job"),
    Xid(92, "high rate of single-bit memory errors", "information", "notice", "none"),
    Xid(93, "non-fatal violation of provisioned InfoROM", "information", "notice", "none"),
    Xid(94, "contained memory error", "application", "error", "restart_job"),
    Xid(95, "uncontained memory error", "memory", "fatal", "reset_gpu"),
    Xid(109, "context switch timeout", "hardware", "fatal", "reset_gpu"),
    Xid(110, "security fault", "hardware", "fatal", "reset_gpu"),
    Xid(119, "GSP does not answer", "firmware", "fatal", "reset_gpu"),
    Xid(120, "GSP error", "firmware", "fatal", "reset_gpu"),
    Xid(121, "C2C link error, corrected", "information", "notice", "none"),
    Xid(122, "SPI read failed", "firmware", "error", "contact_support"),
    Xid(123, "SPI write failed", "firmware", "error", "contact_support"),
    Xid(124, "SPI erase failed", "firmware", "error", "contact_support"),
    Xid(125, "InfoROM cannot be read", "firmware", "error", "contact_support"),
    Xid(136, "link training failed", "nvlink", "fatal", "reset_gpu"),
    Xid(137, "NVLink privilege error", "information", "error", "follow_companion"),
    Xid(140, "unrecovered memory error", "memory", "fatal", "reset_gpu"),
    Xid(141, "fatal fault of a bus interface", "information", "notice", "follow_companion"),
    Xid(142, "reserved; ask NVIDIA", "firmware", "error", "contact_support"),
    Xid(143, "GPU initialisation failed", "hardware", "fatal", "reset_gpu"),
    Xid(144, "NVLink SAW error", "nvlink", "fatal", "check_link"),
    Xid(145, "NVLink RLW error", "nvlink", "fatal", "check_link"),
    Xid(146, "NVLink TLW error", "nvlink", "fatal", "check_link"),
    Xid(147, "NVLink TREX error", "nvlink", "fatal", "check_link"),
    Xid(148, "NVLink NVLPW_CTRL error", "nvlink", "fatal", "check_link"),
    Xid(149, "NVLink NETIR error", "nvlink", "fatal", "check_link"),
    Xid(150, "NVLink MSE error", "nvlink", "fatal", "check_link"),
    Xid(151, "key rotation error", "firmware", "error", "restart_job"),
    Xid(154, "recovery action changed", "firmware", "error", "follow_companion"),
    Xid(155, "NVLink software-defined error", "nvlink", "fatal", "reset_gpu"),
    Xid(156, "resource retirement event", "hardware", "fatal", "reset_gpu"),
    Xid(157, "resource retirement failed", "information", "notice", "contact_support"),
    Xid(158, "GPU fatal timeout", "hardware", "fatal", "reset_gpu"),
    Xid(159, "CHI non-data error", "firmware", "error", "contact_support"),
    Xid(160, "channel retirement event", "information", "notice", "none"),
    Xid(161, "channel retirement failed", "information", "notice", "none"),
    Xid(162, "power smoothing: hardware cannot", "firmware", "notice", "contact_support"),
    Xid(163, "power smoothing: not calibrated", "firmware", "notice", "contact_support"),
    Xid(164, "power smoothing: ramp limits reached", "firmware", "notice", "contact_support"),
    Xid(165, "power smoothing: energy storage", "firmware", "notice", "contact_support"),
    Xid(166, "secure NVLink error", "nvlink", "error", "contact_support"),
    Xid(167, "PCIe fatal timeout", "bus", "fatal", "restart_node"),
    Xid(168, "errors in protected memory", "memory", "error", "contact_support"),
    Xid(169, "SEC2 halt", "firmware", "fatal", "reset_gpu"),
    Xid(170, "secure NVLink interrupt", "nvlink", "error", "contact_support"),
    Xid(171, "uncorrectable DRAM error", "memory", "fatal", "reset_gpu"),
    Xid(172, "uncorrectable SRAM error", "memory", "fatal", "reset_gpu"),
    Xid(173, "fatal C2C error", "nvlink", "fatal", "reset_gpu"),
    Xid(175, "memory subsystem fault", "memory", "fatal", "restart_node"),
    Xid(176, "PCIe fault, corrected", "bus", "notice", "check_hardware"),
    Xid("needs_reset", "the driver refuses work until a reset", "firmware", "fatal", "reset_gpu"),
    Xid("rm_init_failed", "the driver cannot start the GPU", "firmware", "fatal", "reset_gpu"),
    Xid("firmware", "the firmware does not answer", "firmware", "fatal", "reset_gpu"),
    Xid("fallen_off", "GPU has fallen off the bus", "bus", "fatal", "restart_node"),
    Xid("engine_reset", "reset under a program", "application", "error", "restart_job"),
    Xid("memory_corrected", "corrected memory errors", "information", "notice", "none"),
    Xid("memory_error", "uncorrectable memory error", "memory", "fatal", "reset_gpu"),
)
NONFATAL = "-nonfatal"
XID_TABLE = {str(xid.number): xid for xid in XIDS} | {
    f"{xid.number}{NONFATAL}": replace(
        xid, name=f"{xid.name}, nonfatal", severity="notice", remedy="none"
    )
    for xid in XIDS
}
"""By the value of the label ``xid``: what its message calls nonfatal goes on."""
PRECREATED_XIDS = (64, 74, 79, 95, 119, 140)
"""Fatal and common: exported as 0 for every GPU, so that the first incident is an increase."""

# Metrics of the kernel log: faults of GPUs, switches, ports and the node, each incident once.

XID = Label(
    name="xid",
    help="number of the fault by the driver of the GPU, with -nonfatal where its message says so; "
    "else a name of the table, such as needs_reset",
)
XID_CLASS = Label(
    name="xid_class",
    help="part that the fault concerns",
    values=("application", "memory", "bus", "nvlink", "firmware", "hardware", "information"),
)
SEVERITY = Label(
    name="xid_severity",
    help="fatal: the GPU cannot continue; error: the job cannot; notice: both can",
    values=("fatal", "error", "notice"),
)
REMEDY = Label(
    name="remedy",
    help="first remedy",
    values=(
        "none",
        "restart_job",
        "follow_companion",
        "reset_gpu",
        "restart_node",
        "check_link",
        "check_hardware",
        "contact_support",
    ),
)
SXID = Label(name="sxid", help="number of the fault by the driver of the NVSwitch")
SXID_FATAL = Label(
    name="sxid_fatal", help="whether the switch calls it fatal", values=("fatal", "non_fatal")
)
NIC_INCIDENT = Label(
    name="nic_incident",
    help="kind of incident that the port's driver reports",
    values=(
        "link_down",
        "health",
        "command_failed",
        "queue_error",
        "timeout",
        "temperature",
        "cable",
    ),
)
HOST_INCIDENT = Label(
    name="host_incident",
    help="kind of incident in the kernel log",
    values=(
        "soft_lockup",
        "hard_lockup",
        "hung_task",
        "rcu_stall",
        "oom_host",
        "oom_cgroup",
        "machine_check",
        "memory_corrected",
        "memory_uncorrected",
        "pcie_corrected",
        "pcie_nonfatal",
        "pcie_uncorrected",
        "nic_lost",
        "file_server_silent",
        "fabric_manager",
    ),
)
LOG = Label(
    name="log",
    help="source of the messages; nvml is the driver's own events",
    values=("kernel", "fabric_manager", "nvml"),
)

GPU_XID_INCIDENTS = Metric(
    name="lockstep_gpu_xid_incidents_total",
    labels=(PCI_BUS_ID, MIG, XID),
    help="Incidents in which the driver reported this fault; kept over restarts of the agent.",
    source="kernel log, lines of NVRM: Xid, and events of NVML",
)
GPU_XID_LAST = Metric(
    name="lockstep_gpu_xid_last_timestamp_seconds",
    labels=(PCI_BUS_ID, MIG, XID),
    help="Wall clock at which the fault was last reported.",
    source="kernel log, lines of NVRM: Xid, and events of NVML",
)
GPU_XID_INFO = Metric(
    name="lockstep_gpu_xid_info",
    labels=(XID, XID_CLASS, SEVERITY, REMEDY),
    help="Meaning of a fault that occurred on this node, always 1.",
    source="the table of Xids in the catalogue",
)
NVSWITCH_INCIDENTS = Metric(
    name="lockstep_nvlink_switch_incidents_total",
    labels=(PCI_BUS_ID, SXID, SXID_FATAL),
    help="Incidents in which an NVSwitch reported this fault; kept over restarts of the agent.",
    source="kernel log, lines of SXid",
)
NIC_INCIDENTS = Metric(
    name="lockstep_fabric_nic_incidents_total",
    labels=(DEVICE, NIC_INCIDENT),
    help="Incidents that the driver of a port reported; the device is named as the driver does.",
    source="kernel log, lines of mlx5_core, ena, bnxt_en, ice and of the link state",
)
HOST_INCIDENTS = Metric(
    name="lockstep_host_incidents_total",
    labels=(HOST_INCIDENT,),
    help="Incidents that the kernel reported; kept over restarts of the agent.",
    source="kernel log and log of the fabric manager",
)
LOG_LOST = Metric(
    name="lockstep_agent_log_messages_lost_total",
    labels=(LOG,),
    help="Messages that the log dropped before the agent could read them.",
    source="sequence numbers of /dev/kmsg",
)
LOG_UNKNOWN = Metric(
    name="lockstep_agent_log_lines_unknown_total",
    labels=(LOG,),
    help="Lines of the log with a stamp that the agent does not know, since its start.",
    source="the log",
)
LOG_READ = Metric(
    name="lockstep_agent_log_messages_total",
    labels=(LOG,),
    help="Messages that the agent has read; kept over restarts of the agent.",
    source="the log, and events of NVML",
)
