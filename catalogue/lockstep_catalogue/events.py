"""Metrics of the kernel log: faults of GPUs, switches, ports and the node, each incident once."""

from lockstep_catalogue.labels import DEVICE, MIG, PCI_BUS_ID
from lockstep_catalogue.metric import Label, Metric

XID = Label(name="xid", help="number of the fault by the driver of the GPU")
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
    values=("link_down", "health", "command_failed", "queue_error", "timeout", "temperature"),
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
        "pcie_uncorrected",
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
LOG_READ = Metric(
    name="lockstep_agent_log_messages_total",
    labels=(LOG,),
    help="Messages that the agent has read; kept over restarts of the agent.",
    source="the log, and events of NVML",
)
