"""Which alerts keep which others quiet: one line an edge, from cause to symptom."""

from dataclasses import dataclass

from lockstep_catalogue.labels import CLUSTER, JOB_ID, NODE
from lockstep_catalogue.ledger import SLO

MAINTENANCE = "TrainMaintenance"
"""No rule makes it: whoever takes a node, a job or a cluster out of service posts it."""
INFO_INHIBITOR = "InfoInhibitor"
WATCHDOG = "Watchdog"

CRITICAL = 'severity="critical"'
_TICKET = 'severity=~"warning|info"'
_BY_JOB = (CLUSTER.name, JOB_ID.name)
_BY_NODE = (CLUSTER.name, NODE.name)
_BY_CLUSTER = (CLUSTER.name,)
_STRAGGLERS = (
    "TrainStragglerRank",
    "TrainStragglerRankSlight",
    "TrainStragglerNode",
    "TrainStragglerNodeSlight",
    "TrainStragglerStage",
)


def _present(label: str) -> str:
    return f'{label}!=""'


@dataclass(frozen=True, kw_only=True, slots=True)
class Inhibition:
    """While a source fires, targets with the same labels are not notified.

    Attributes:
        sources: names of alerts; empty where ``source_matchers`` choose them.
        targets: names of alerts; empty where ``target_matchers`` choose them.
        equal: labels with the same value on both sides.
        source_matchers: further matchers of the source.
        target_matchers: further matchers of the target.
    """

    sources: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    equal: tuple[str, ...]
    source_matchers: tuple[str, ...] = ()
    target_matchers: tuple[str, ...] = ()

    def _guards(self) -> list[str]:
        """Labels that are missing count as equal: an alert without a job would inhibit all jobs."""
        return [_present(label) for label in self.equal if label != CLUSTER.name]

    def rule(self) -> dict[str, object]:
        """The edge as Alertmanager's configuration has it."""
        return {
            "source_matchers": [*_named(self.sources), *self.source_matchers, *self._guards()],
            "target_matchers": [*_named(self.targets), *self.target_matchers, *self._guards()],
            "equal": list(self.equal),
        }


def _named(alerts: tuple[str, ...]) -> list[str]:
    return [f'alertname=~"{"|".join(alerts)}"'] if alerts else []


GRAPH = (
    Inhibition(equal=_BY_JOB, source_matchers=(CRITICAL,), target_matchers=(_TICKET,)),
    Inhibition(
        equal=(CLUSTER.name, SLO.name),
        source_matchers=(CRITICAL,),
        target_matchers=('severity="warning"',),
    ),
    # Without equal jobs: one fabric carries all jobs of the cluster, and its page names the nodes.
    Inhibition(
        sources=("TrainFabricDegraded",),
        targets=(
            "TrainJobStalled",
            "TrainPortFault",
            "TrainPacketsLost",
            "TrainJobNodeFault",
            "TrainJobNodeLost",
            "TrainNodeFault",
            "TrainJobCrashLoop",
            *_STRAGGLERS,
            "TrainGradSyncSlow",
            "TrainBusBandwidthLow",
            "TrainThroughputLow",
            "TrainThroughputHalved",
            "TrainStepLatencyRegression",
            "TrainSLOGoodputBurn",
            "TrainSLOGoodputSlow",
            "TrainQueueWaitHigh",
        ),
        equal=_BY_CLUSTER,
    ),
    Inhibition(
        sources=("TrainStorageDegraded",),
        targets=(
            "TrainCheckpointStale",
            "TrainCheckpointFailed",
            "TrainCheckpointsFailing",
            "TrainResumeFailing",
            "TrainDataStarved",
        ),
        equal=_BY_CLUSTER,
    ),
    # One node under several jobs is one page, and its jobs keep their symptoms quiet all the same.
    Inhibition(
        sources=("TrainNodeFault",),
        targets=("TrainJobNodeFault", "TrainJobNodeLost", "GpuNodeFatalError"),
        equal=_BY_NODE,
    ),
    Inhibition(
        sources=("TrainJobNodeFault", "TrainJobNodeLost", "TrainJobGpuDegraded", "TrainPortFault"),
        targets=(
            "TrainJobStalled",
            "TrainJobCrashLoop",
            *_STRAGGLERS,
            "TrainStepLatencyRegression",
            "TrainTelemetryMissing",
        ),
        equal=_BY_JOB,
    ),
    Inhibition(
        sources=("TrainJobStalled",),
        targets=(
            "TrainStepLatencyRegression",
            "TrainThroughputLow",
            "TrainThroughputHalved",
            "TrainJobDeadlineAtRisk",
            "TrainCheckpointStale",
            "GpuAllocatedIdle",
            "TrainTelemetryMissing",
        ),
        equal=_BY_JOB,
    ),
    Inhibition(sources=("TrainLossNotFinite",), targets=("TrainLossAnomaly",), equal=_BY_JOB),
    Inhibition(
        sources=("TrainResumeFailing",), targets=("TrainResumeOldCheckpoint",), equal=_BY_CLUSTER
    ),
    Inhibition(
        sources=("TrainTelemetryMissing",), targets=("TrainSLOGoodputBurn",), equal=_BY_CLUSTER
    ),
    Inhibition(
        sources=("TrainLedgerStale",),
        equal=_BY_CLUSTER,
        target_matchers=(_present(SLO.name),),
    ),
    Inhibition(
        sources=("TrainLedgerStale",), targets=("TrainTelemetryMissing",), equal=_BY_CLUSTER
    ),
    Inhibition(sources=(INFO_INHIBITOR,), equal=_BY_JOB, target_matchers=('severity="info"',)),
    *(
        Inhibition(
            sources=(MAINTENANCE,),
            equal=equal,
            target_matchers=(f'alertname!~"{MAINTENANCE}|{WATCHDOG}"',),
        )
        for equal in (_BY_JOB, _BY_NODE)
    ),
    Inhibition(
        sources=(MAINTENANCE,),
        equal=_BY_CLUSTER,
        source_matchers=(f'{JOB_ID.name}=""', f'{NODE.name}=""'),
        target_matchers=(f'alertname!~"{MAINTENANCE}|{WATCHDOG}"',),
    ),
)
"""A source that is itself inhibited inhibits all the same, so chains work."""


def alert_names() -> frozenset[str]:
    """Every alert that the graph names."""
    return frozenset(name for edge in GRAPH for name in edge.sources + edge.targets)
