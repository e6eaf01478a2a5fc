"""Alerts that keep others quiet: one line an edge, from cause to symptom."""

from collections.abc import Iterator
from dataclasses import dataclass

from lockstep_alerts.alert import Alert
from lockstep_alerts.areas import OBJECTIVES
from lockstep_catalogue.labels import CLUSTER, JOB_ID, NODE, PP
from lockstep_catalogue.ledger import SLO

MAINTENANCE = "TrainMaintenance"
"""No rule makes it: whoever takes a node, a job or a cluster out of service posts it."""
EXPLAINED = "TrainJobExplained"
"""The jobs that a cause of several nodes explains; it notifies nobody."""
WATCHDOG = "TrainWatchdog"
"""A name of its own: kube-prometheus has a Watchdog, with a route of its own."""

CRITICAL = 'severity="critical"'
_TICKET = 'severity=~"warning|info"'
_JOB_LABELS = (CLUSTER.name, JOB_ID.name)
_NODE_LABELS = (CLUSTER.name, NODE.name)
_CLUSTER_LABELS = (CLUSTER.name,)
_STRAGGLERS = (
    "TrainStragglerRank",
    "TrainStragglerRankSlight",
    "TrainStragglerNode",
    "TrainStragglerNodeSlight",
    "TrainStragglerStage",
)
_SLOWER = ("TrainStepLatencyRegression", "TrainThroughputLow")


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
        return [f'{label}!=""' for label in self.equal if label != CLUSTER.name]

    def rule(self) -> dict[str, object]:
        """The edge as Alertmanager's configuration has it."""
        return {
            "source_matchers": [*_named(self.sources), *self.source_matchers, *self._guards()],
            "target_matchers": [*_named(self.targets), *self.target_matchers, *self._guards()],
            "equal": list(self.equal),
        }


def _named(alerts: tuple[str, ...]) -> list[str]:
    return [f'alertname{"=~" if alerts[1:] else "="}"{"|".join(alerts)}"'] if alerts else []


GRAPH = (
    Inhibition(equal=_JOB_LABELS, source_matchers=(CRITICAL,), target_matchers=(_TICKET,)),
    Inhibition(
        equal=(CLUSTER.name, SLO.name),
        source_matchers=(CRITICAL,),
        target_matchers=('severity="warning"',),
    ),
    # A wide cause has one page without a job. It keeps nothing quiet itself: the jobs that have
    # ranks on its nodes do, by an alert of their own each.
    *(
        Inhibition(
            sources=(EXPLAINED,),
            targets=targets,
            equal=_JOB_LABELS,
            source_matchers=(f'cause=~"{causes}"' if "|" in causes else f'cause="{causes}"',),
        )
        for causes, targets in (
            (
                "nodes|fabric",
                (
                    "TrainJobStalled",
                    "TrainPortFault",
                    "TrainPacketsLost",
                    "TrainJobNodeFault",
                    "TrainJobNodeLost",
                    "TrainJobCrashLoop",
                    *_STRAGGLERS,
                    *_SLOWER,
                    "TrainGradSyncSlow",
                    "TrainBusBandwidthLow",
                    "TrainCheckpointStale",
                ),
            ),
            (
                "storage",
                (
                    "TrainJobStalled",
                    "TrainCheckpointStale",
                    "TrainCheckpointFailed",
                    "TrainDataStarved",
                    *_STRAGGLERS,
                    *_SLOWER,
                ),
            ),
            ("power", ("TrainJobGpuDegraded", *_STRAGGLERS, *_SLOWER)),
        )
    ),
    # One node under several jobs is one page, and its jobs keep their symptoms quiet all the same.
    Inhibition(
        sources=("TrainNodeFault",),
        targets=("TrainJobNodeFault", "TrainJobNodeLost", "GpuNodeFatalError"),
        equal=_NODE_LABELS,
    ),
    Inhibition(
        sources=("TrainJobNodeFault", "TrainJobNodeLost", "TrainJobGpuDegraded", "TrainPortFault"),
        targets=(
            "TrainJobStalled",
            "TrainJobCrashLoop",
            *_STRAGGLERS,
            *_SLOWER,
            "TrainTelemetryMissing",
        ),
        equal=_JOB_LABELS,
    ),
    Inhibition(
        sources=("TrainJobStalled",),
        targets=(
            *_SLOWER,
            "TrainJobDeadlineAtRisk",
            "TrainCheckpointStale",
            "GpuAllocatedIdle",
            "TrainTelemetryMissing",
        ),
        equal=_JOB_LABELS,
    ),
    # A stage that has just slowed is uneven as well.
    Inhibition(
        sources=("TrainStragglerStage",),
        targets=("TrainStageUneven",),
        equal=(*_JOB_LABELS, PP.name),
    ),
    Inhibition(sources=("TrainLossNotFinite",), targets=("TrainLossAnomaly",), equal=_JOB_LABELS),
    *(
        Inhibition(
            sources=(MAINTENANCE,),
            equal=equal,
            target_matchers=(f'alertname!~"{MAINTENANCE}|{WATCHDOG}"',),
        )
        for equal in (_JOB_LABELS, _NODE_LABELS)
    ),
    Inhibition(
        sources=(MAINTENANCE,),
        equal=_CLUSTER_LABELS,
        source_matchers=(f'{JOB_ID.name}=""', f'{NODE.name}=""'),
        target_matchers=(f'alertname!~"{MAINTENANCE}|{WATCHDOG}"',),
    ),
)
"""A source that is itself inhibited inhibits all the same, so chains work."""


def inhibitors(alert: Alert) -> Iterator[str]:
    """The edges of the graph that end in this alert by its name, or by its severity and job."""
    for edge in GRAPH:
        same = " and ".join(edge.equal)
        if alert.name in edge.targets:
            cause = "".join(f" ({each})" for each in edge.source_matchers)
            yield f"{', '.join(edge.sources)}{cause} by {same}"
            continue
        is_held = alert.is_of_job if "job_id" in edge.equal else alert.area is OBJECTIVES
        if is_held and not edge.sources and alert.severity in {"warning", "info"}:
            yield f"every page by {same}"
