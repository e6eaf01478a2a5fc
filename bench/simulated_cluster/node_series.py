"""Series of GPUs, ports, hosts and agents: every such metric of the catalogue, on every node.

Labels with a closed set of values take all of them, but for states that exclude each other; of
faults that are rare a healthy node serves no zero, as the agent does. What is troubled is so from
halfway on.
"""

import re
import zlib
from collections.abc import Iterator
from itertools import product

import numpy as np

from lockstep_catalogue import (
    Endpoint,
    Kind,
    Label,
    Metric,
    Unit,
    agent,
    fabric,
    gpu,
    host,
    metrics_of,
)
from lockstep_catalogue import labels as of_jobs
from lockstep_catalogue.incidents import XID_TABLE
from lockstep_catalogue.series_budget import DETAIL, SPARSE

from .cluster import CLUSTER_NAME, GPUS, Cluster, Job, Values
from .remote_write import Samples

PORTS = tuple(f"mlx5_{number}" for number in range(GPUS))
INTERFACES = ("eth0", "eth1")
_OTHER_PARTS = ("train", "ledger")
# What a healthy device serves nothing of: rare faults, and kinds that appear with their first one.
_SPARSE = frozenset(
    metric.name for metric in (*SPARSE, fabric.PCIE_AER_KINDS, fabric.PORT_SATURATED)
)
_DETAIL = frozenset(metric.name for metric in DETAIL)
_SICK_GPU, _SICK_XID = 3, 79
_TROUBLE = re.compile(
    "error|fail|pending|exceeded|unhealthy|stalled|saturated|released|unreadable|lost|refus"
    "|incidents|storms|discards|dropped|retransm|timeouts|retired|remapped|throttle_active|replays"
    "|left_out|steal|congestion|losses|ecn_marked|pause|oom|wait_ticks"
)
# Of states that exclude each other: the healthy one, and the one of what is sick.
_STATES = {
    "gpu_state": ("ok", "reset_required"),
    "action": ("none", "gpu_reset"),
    "fabric_state": ("completed", "completed"),
    "endpoint": ("gpu", "gpu"),
    "distance": ("pix", "pix"),
    "link_layer": ("infiniband", "infiniband"),
    "port_state": ("active", "down"),
    "physical_state": ("link_up", "polling"),
    "verdict": ("ok", "failed"),
    "gpu_reason": ("none", "recovery_action"),
    "port_reason": ("none", "down"),
    "expected_reason": ("none", "not_up"),
    "node_reason": ("none", "gpu_failed"),
    "store": ("postgresql", "postgresql"),
}
# Values of labels whose set is open.
_OPEN = {
    "model": ("NVIDIA H100 80GB HBM3",), "architecture": ("hopper",), "version": ("590.48.01",),
    "cuda": ("13.1",), "vbios": ("96.00.89.00.01",), "mig": ("1/0",), "collector": ("gpu", "ranks"),
    "mig_uuid": ("MIG-0",), "worker": ("gpus", "ranks"), "link": ("7",), "clique": ("0",),
    "fabric": ("00000000-0000-0000-0000-000000000001",), "adapter": ("MT4129",), "rail": ("0",),
    "firmware": ("28.39.1002",), "board": ("MT_0000000838",), "numa_node": ("0",),
    "port_above": ("0000:0f:00.0",), "filesystem": ("nfs4",), "source": ("files.example:/export",),
    "mount_point": ("/mnt/data",), "volume": ("0:53", "nvme0n1"), "sxid": ("12028",),
    "part_of_model": ("pp=0",),
}  # fmt: skip
# The mean value of what has a typical one; the unit decides for the rest.
_TYPICAL: dict[Metric, float] = {
    gpu.GPU_COUNT: GPUS,
    gpu.GPU_MEMORY_TOTAL: 8.55e10,
    gpu.GPU_MIG_ENABLED: 0,
    gpu.GPU_TENSOR_ACTIVE: 0.45,
    gpu.GPU_PCIE_GENERATION: 5,
    gpu.GPU_PCIE_GENERATION_MAX: 5,
    gpu.GPU_POWER_LIMIT: 700,
    gpu.GPU_PSTATE: 0,
    gpu.GPU_TEMPERATURE: 58,
    agent.AGENT_SERIES: 1100,
    agent.EVENTS_PENDING: 2,
    agent.EVENTS_SPOOL_RATIO: 0.01,
    host.MEMORY_AVAILABLE: 1.6e12,
    host.MEMORY_TOTAL: 2.16e12,
    gpu.NVLINK_BIT_ERROR: 1e-15,
    gpu.NVLINK_LINKS: 18,
    gpu.NVLINK_SPEED_MIN: 2.6562e10,
    gpu.NVLINK_RATE: 1.5e11,
    gpu.GPU_PCIE_RATE: 8e9,
    gpu.GPU_PCIE_GENERATION_DEVICE_MAX: 5,
    fabric.PCIE_RATIO: 1,
    fabric.PCIE_SPEED: 3.2e10,
}
_UNIT_VALUES = {
    Unit.RATIO: 0.7,
    Unit.BYTES: 6e10,
    Unit.BYTES_PER_SECOND: 4e10,
    Unit.WATTS: 600,
    Unit.CELSIUS: 40,
    Unit.HERTZ: 1.7e9,
    Unit.LANES: 16,
    Unit.SECONDS: 0.01,
}
_UNIT_RATES = {Unit.BYTES: 8e9, Unit.JOULES: 590, Unit.SECONDS: 0.02}
_CONSTANT = re.compile("limit|total|speed|port_rate")


def node_series(cluster: Cluster) -> Iterator[Samples]:
    """All series of the agents but those of jobs."""
    metrics = [
        metric
        for metric in metrics_of(Endpoint.AGENT)
        if metric.name.split("_")[1] not in _OTHER_PARTS
    ]
    for node in cluster.nodes:
        yield Samples({"__name__": "up"} | target(node), np.ones_like(cluster.times))
        for metric in metrics:
            if metric.name in _DETAIL and node not in cluster.sick:
                continue  # agents serve it on request, where somebody looks closer
            yield from _sample_metric(metric, node, cluster)


def target(node: str) -> dict[str, str]:
    """The labels that Prometheus gives a node's series."""
    return {"job": "lockstep-agent", "instance": f"{node}:9464"}


def _sample_metric(metric: Metric, node: str, cluster: Cluster) -> Iterator[Samples]:
    for labels, is_sick in _label_sets(metric, node, cluster):
        if metric.name in _SPARSE and not is_sick:
            continue
        identity = {"cluster": CLUSTER_NAME, "node": node} | target(node) | labels
        values = _values(metric, identity, cluster, is_sick=is_sick)
        yield Samples({"__name__": metric.name} | identity, values)


def _label_sets(
    metric: Metric, node: str, cluster: Cluster
) -> Iterator[tuple[dict[str, str], bool]]:
    """The labels of each series, and whether it is of something that is sick."""
    names = set(metric.label_names)
    node_is_sick = node in cluster.sick
    if "mig" in names and "gpu" in names and node != cluster.nodes[-1]:
        return  # one spare node is split
    of_devices = names & {"gpu", "device", "pci_bus_id"}
    for number, bare_device in enumerate(_devices(names, node)):
        is_sick = node_is_sick and (not of_devices or number == _SICK_GPU)
        if "xid" in names and not is_sick:
            continue
        device = bare_device | (_make_xid_labels(names) if "xid" in names else {})
        rest = [label for label in metric.labels if label.name not in {*device, "cluster", "node"}]
        job = cluster.job_on(node)
        if "job_id" in names and job is None:
            continue
        options = [_options(label, job, is_sick=is_sick) for label in rest]
        for values in product(*options):
            pairs = dict(zip((label.name for label in rest), values, strict=True))
            yield device | pairs, is_sick


def _devices(names: set[str], node: str) -> list[dict[str, str]]:
    """The labels of each GPU, port or interface that the metric is about; one set if of none."""
    if "gpu" in names:
        return [_make_gpu_labels(names, node, number) for number in range(GPUS)]
    if "device" in names and ("port" in names or "distance" in names or "endpoint" in names):
        return [
            {"device": port} | _pick_labels(names, {"port": "1", "pci_bus_id": _bus_id(number)})
            for number, port in enumerate(PORTS)
        ]
    if "device" in names:
        return [{"device": name} for name in (*INTERFACES, "eth2", "eth3")]
    if "pci_bus_id" in names:
        return [{"pci_bus_id": _bus_id(number)} for number in range(GPUS)]
    return [{}]


def _make_gpu_labels(names: set[str], node: str, number: int) -> dict[str, str]:
    labels = {
        "gpu": str(number),
        "uuid": uuid_of(node, number),
        "pci_bus_id": _bus_id(number),
        "minor": str(number),
        "serial": f"165{int(node[-4:]):06d}{number}",
    }
    return _pick_labels(names, labels)


def uuid_of(node: str, number: int) -> str:
    """The UUID of a GPU."""
    return f"GPU-00000000-0000-0000-{node[-4:]}-{number:012d}"


def _pick_labels(names: set[str], labels: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in labels.items() if name in names}


def _bus_id(number: int) -> str:
    return f"0000:{16 + number:02x}:00.0"


def _make_xid_labels(names: set[str]) -> dict[str, str]:
    xid = XID_TABLE[str(_SICK_XID)]
    labels = {
        "xid": str(_SICK_XID),
        "xid_class": xid.kind,
        "xid_severity": xid.severity,
        "remedy": xid.remedy,
        "mig": "",
    }
    return _pick_labels(names, labels)


def _options(label: Label, job: Job | None, *, is_sick: bool) -> tuple[str, ...]:
    if label == of_jobs.JOB_ID:
        return (job.job_id,) if job else ("",)
    if label.name in _STATES:
        return (_STATES[label.name][is_sick],)
    if label.values:
        return label.values
    return _OPEN.get(label.name, ("",))


def _values(metric: Metric, labels: dict[str, str], cluster: Cluster, *, is_sick: bool) -> Values:
    times = cluster.times
    # The same place in its range for a series in every run: figures can be compared.
    seed = zlib.crc32(f"{metric.name}{sorted(labels.items())}".encode()) % 1000 / 1000
    if metric.unit is Unit.TIMESTAMP_SECONDS:
        return np.where(cluster.is_later, cluster.halfway, np.nan) if is_sick else times.copy()
    if _TROUBLE.search(metric.name):
        return _trouble(metric, cluster, seed) if is_sick else np.zeros_like(times)
    if metric.name.endswith(("_up", "_success")) and is_sick:
        return np.where(cluster.is_later, 0.0, 1.0)
    if metric.kind is Kind.COUNTER:
        usual = 1.5e11 if metric is gpu.NVLINK_BYTES else _UNIT_RATES.get(metric.unit, 100.0)
        rate = usual * (0.8 + 0.4 * seed)
        counted: Values = rate * (times - times[0])
        return counted
    return _gauge(metric, times - times[0], seed)


def _trouble(metric: Metric, cluster: Cluster, seed: float) -> Values:
    late_seconds = np.maximum(cluster.times - cluster.halfway, 0)
    if metric.kind is Kind.COUNTER:
        return np.floor(late_seconds / (30 + 60 * seed))
    return cluster.is_later.astype(np.float64)


def _gauge(metric: Metric, since_start: Values, seed: float) -> Values:
    if metric.name.endswith(("_info", "_up", "_success")):
        return np.ones_like(since_start)
    typical = _TYPICAL.get(metric, _UNIT_VALUES.get(metric.unit, 8.0))
    if metric.unit in {Unit.LANES, Unit.NONE} or _CONSTANT.search(metric.name):
        return np.full_like(since_start, typical)
    wave = np.sin(since_start / (97 + 53 * seed) + 7 * seed)
    values: Values = typical * (1 - 0.1 * seed + 0.03 * wave)
    return values
