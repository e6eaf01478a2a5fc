"""The collectors by name: values of the label ``collector`` and of the option ``--without``."""

COLLECTORS = (
    *("gpu", "gpu_activity", "gpu_allocation", "gpu_events", "gpu_fabric", "gpu_fault_locations"),
    *("gpu_faults", "gpu_identity", "gpu_lifetime_faults", "gpu_limits", "gpu_mig_activity"),
    *("gpu_pcie_bytes", "gpu_pcie_errors", "gpu_pcie_limits", "gpu_pcie_link", "gpu_power"),
    *("gpu_processes", "gpu_throttle", "gpu_throttle_seconds", "gpu_window"),
    *("nvlink", "nvlink_bytes", "nvlink_quality", "driver", "dcgm", "dcgm_exporter"),
    *("net", "ethernet", "infiniband", "infiniband_errors", "port_health", "pcie", "affinity"),
    *("ranks", "hangs", "bus", "loads", "job_host", "host", "storage", "kernel_log"),
    *("agent_info", "node_events", "delivery", "archive"),
)
