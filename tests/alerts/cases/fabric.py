"""Cases of conditions on the fabric and the storage."""

from lockstep_alerts.conditions.fabric import ClusterLosing, PacketsLost, PortFault, StorageDegraded
from lockstep_catalogue import fabric, gpu, host, recorded
from lockstep_catalogue.metric import Metric

from .case import Case, proves
from .hardware_series import on_nodes
from .synthetic import JOB_NODE, Samples, Timing, sample_node, samples, spends, trains

_PORT = {"device": "mlx5_3", "port": "1"}


@proves(PortFault)
def port_fault(condition: PortFault, timing: Timing) -> list[Case]:
    running, down = trains(timing), _verdict(timing, "down")
    own, other = _owner(timing, "mlx5_3"), _owner(timing, "mlx5_4")
    return [
        Case("its port is down", [running, own, down], JOB_NODE),
        Case("retries are used up", [running, own, _verdict(timing, "retries")], JOB_NODE),
        Case("a port of its node is down", [running, down], JOB_NODE),
        Case("its port has errors", [running, own, _verdict(timing, "errors")], JOB_NODE),
        Case("a port of others is down", [running, other, down]),
    ]


@proves(PacketsLost)
def packets_lost(condition: PacketsLost, timing: Timing) -> list[Case]:
    lossy, clean = 2 * condition.above_ratio, condition.above_ratio / 4
    waits, works = (1 + condition.sync_ratio) / 2, condition.sync_ratio / 2
    return [
        Case("packets are lost and ranks wait", _sending(timing, lossy, waits), JOB_NODE),
        Case("packets are lost and nobody waits", _sending(timing, lossy, works)),
        Case("ranks wait and no packet is lost", _sending(timing, clean, waits)),
    ]


def _verdict(timing: Timing, reason: str, node: str = "n1") -> Samples:
    verdict = "failed" if reason in {"down", "flapping"} else "degraded"
    labels = {**_PORT, "verdict": verdict, "port_reason": reason}
    return sample_node(fabric.PORT_HEALTH, timing.appears(), node, **labels)


def _owner(timing: Timing, device: str) -> Samples:
    """The job's GPUs are nearest to a port."""
    labels = {"device": device, "job_id": "j1", "rank": "2"}
    return sample_node(gpu.PORT_OWNER_INFO, timing.steady(1), **labels)


def _sending(timing: Timing, again_ratio: float, waiting: float) -> list[Samples]:
    """A job that sends a thousand segments a second; from the onset on some are sent again."""
    again = timing.grows(1000 * again_ratio)
    return [
        sample_node(host.JOB_TCP_SEGMENTS, timing.counts(1000), job_id="j1"),
        sample_node(host.JOB_TCP_RETRANSMITS, again, job_id="j1"),
        *spends(
            {
                "communication": timing.grows(waiting, before=0.05),
                "productive": timing.grows(1 - waiting, before=0.95),
            }
        ),
    ]


_SOURCE, _VOLUME = "filer:/checkpoints", "0:52"


@proves(StorageDegraded)
def storage_degraded(condition: StorageDegraded, timing: Timing) -> list[Case]:
    source = {"cluster": "c1", "source": _SOURCE}

    def volumes(num_nodes: int, metric: Metric, per_second: float) -> list[Samples]:
        return on_nodes(num_nodes, lambda node: _volume(timing, node, metric, per_second))

    enough, crawls = condition.least_nodes, 20 * condition.above_seconds  # ten requests a second
    too_few = volumes(enough - 1, host.STORAGE_TIMEOUTS, 1)
    return [
        Case("it times out", volumes(enough, host.STORAGE_TIMEOUTS, 1), source),
        Case("it crawls", volumes(enough, host.STORAGE_SECONDS, crawls), source),
        Case("it times out on fewer nodes", too_few),
        Case("it works", volumes(enough, host.STORAGE_SECONDS, crawls / 8)),
    ]


def _volume(timing: Timing, node: str, metric: Metric, per_second: float) -> list[Samples]:
    """A volume of a node; from the onset on a counter of it grows."""
    labels = {"volume": _VOLUME}
    info = {"filesystem": "nfs4", "source": _SOURCE, "mount_point": "/checkpoints"}
    operation = {} if metric is host.STORAGE_TIMEOUTS else {"operation": "write"}
    requests = timing.counts(10)
    return [
        trains(timing, 1, node),
        sample_node(host.VOLUME_INFO, timing.steady(1), node, **labels, **info),
        sample_node(host.STORAGE_REQUESTS, requests, node, **labels, operation="write"),
        sample_node(metric, timing.grows(per_second), node, **labels, **operation),
    ]


@proves(ClusterLosing)
def cluster_losing(condition: ClusterLosing, timing: Timing) -> list[Case]:
    """The jobs and their losses are the recorded series' of another group."""
    wide = {"cluster": "c1", "cause": "fabric"}

    def ports(num_nodes: int, lost: float, *, is_idle: bool = False) -> list[Samples]:
        of_jobs = [
            samples(recorded.JOB_LOSS, timing.appears(lost), cluster="c1", job_id=f"j{number}")
            for number in range(1, num_nodes + 1)
        ]
        runs = [] if is_idle else [
            trains(timing, 1, f"n{number}", f"j{number}") for number in range(1, num_nodes + 1)
        ]  # fmt: skip
        broken = on_nodes(num_nodes, lambda node: [_verdict(timing, "down", node)])
        return [*of_jobs, *runs, *broken]

    return [
        Case("jobs at broken ports lose much", ports(4, 8), wide),
        Case("jobs go around their broken ports", ports(4, 0)),
        Case("ports of two nodes are broken", ports(2, 8)),
        Case("ports of idle nodes are broken", ports(4, 8, is_idle=True)),
    ]
