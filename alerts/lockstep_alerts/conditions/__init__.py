"""The kinds of conditions that an entry of slos.yaml can name: one class each, one line here."""

from collections.abc import Mapping

from lockstep_alerts.conditions.attempts import (
    CrashLoop,
    FailedOnStart,
    OutOfMemoryLoop,
    TopologyWrong,
)
from lockstep_alerts.conditions.condition import ConditionKind
from lockstep_alerts.conditions.contention import Contention, NodePressure, PodEvicted
from lockstep_alerts.conditions.counted import CheckpointFailed, CheckpointInvalid, OutOfMemory
from lockstep_alerts.conditions.deadline import DeadlineAtRisk
from lockstep_alerts.conditions.idle_nodes import GpuFatalError, GpuLinkDegraded, GpuThrottled
from lockstep_alerts.conditions.ledger_service import LedgerImpaired
from lockstep_alerts.conditions.loss import LossAnomaly
from lockstep_alerts.conditions.monitor_cost import MonitorCost
from lockstep_alerts.conditions.node_faults import JobGpuDegraded, JobNodeFault
from lockstep_alerts.conditions.node_lost import JobNodeLost
from lockstep_alerts.conditions.not_finite import NotFinite
from lockstep_alerts.conditions.pipeline import AlwaysFiring, InfoAlone
from lockstep_alerts.conditions.ports import FabricDegraded, PacketsLost, PortFault
from lockstep_alerts.conditions.recovery_point import CheckpointStale
from lockstep_alerts.conditions.replicas import ReplicasDiffer
from lockstep_alerts.conditions.reporting import AgentImpaired, TelemetryMissing
from lockstep_alerts.conditions.scheduling import PreemptionLoss, QueueWait, ResumedOlder
from lockstep_alerts.conditions.shared_node import SharedNodeFault
from lockstep_alerts.conditions.skew import DataSkew
from lockstep_alerts.conditions.stages import StageSlowed, StageUneven
from lockstep_alerts.conditions.stalled import Stalled
from lockstep_alerts.conditions.storage import StorageDegraded
from lockstep_alerts.conditions.straggler import Straggler, StragglerNode
from lockstep_alerts.conditions.unobserved import Unobserved
from lockstep_alerts.conditions.wasted import AllocatedIdle, DataStarved
from lockstep_alerts.conditions.watchers import AgentsDown, LedgerStale, RulesSlow

AREAS: Mapping[str, Mapping[str, type[ConditionKind]]] = {
    "jobs": {
        "straggler": Straggler,
        "straggler_node": StragglerNode,
        "stage_slowed": StageSlowed,
        "stage_uneven": StageUneven,
        "stalled": Stalled,
        "not_finite": NotFinite,
        "unobserved": Unobserved,
    },
    "attempts": {
        "checkpoint_invalid": CheckpointInvalid,
        "checkpoint_failed": CheckpointFailed,
        "out_of_memory": OutOfMemory,
        "replicas_differ": ReplicasDiffer,
        "data_skew": DataSkew,
        "failed_on_start": FailedOnStart,
        "crash_loop": CrashLoop,
        "out_of_memory_loop": OutOfMemoryLoop,
        "topology_wrong": TopologyWrong,
        "loss_anomaly": LossAnomaly,
    },
    "nodes": {
        "job_node_fault": JobNodeFault,
        "job_node_lost": JobNodeLost,
        "job_gpu_degraded": JobGpuDegraded,
        "shared_node_fault": SharedNodeFault,
        "gpu_fatal_error": GpuFatalError,
        "gpu_link_degraded": GpuLinkDegraded,
        "gpu_throttled": GpuThrottled,
    },
    "fabric": {
        "port_fault": PortFault,
        "packets_lost": PacketsLost,
        "fabric_degraded": FabricDegraded,
        "storage_degraded": StorageDegraded,
    },
    "capacity": {
        "checkpoint_stale": CheckpointStale,
        "deadline_at_risk": DeadlineAtRisk,
        "contention": Contention,
        "monitor_cost": MonitorCost,
        "node_pressure": NodePressure,
        "pod_evicted": PodEvicted,
        "data_starved": DataStarved,
        "allocated_idle": AllocatedIdle,
        "queue_wait": QueueWait,
        "preemption_loss": PreemptionLoss,
        "resumed_older": ResumedOlder,
    },
    "telemetry": {
        "agents_down": AgentsDown,
        "agent_impaired": AgentImpaired,
        "ledger_impaired": LedgerImpaired,
        "telemetry_missing": TelemetryMissing,
        "ledger_stale": LedgerStale,
        "rules_slow": RulesSlow,
        "always_firing": AlwaysFiring,
        "info_alone": InfoAlone,
    },
}
"""By the area whose rule file they go to."""
CONDITIONS: Mapping[str, type[ConditionKind]] = {
    kind: condition for kinds in AREAS.values() for kind, condition in kinds.items()
}
