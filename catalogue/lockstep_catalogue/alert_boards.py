"""The board and row that answer each alert: alerts can link to them, and the boards have them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lockstep_catalogue.labels import CLUSTER, JOB_ID, NODE
from lockstep_catalogue.metric import Label

_BASE_RANGE = "from=now-1h&to=now"
_MONTH_RANGE = "from=now-28d&to=now"


@dataclass(frozen=True, slots=True)
class AlertBoard:
    """Where the answer is: the labels that a board has as variables, a window as its parameters."""

    board: str
    row: str
    labels: tuple[Label, ...] = (CLUSTER,)
    window: str = _BASE_RANGE

    def address(self, base: str = "") -> str:
        """The address of the board, with the alert's labels as templates of Prometheus."""
        variables = [f"var-{x.name}={{{{ urlquery $labels.{x.name} }}}}" for x in self.labels]
        return f"{base}/d/{self.board}?{'&'.join([self.window, *variables])}#{anchor(self.row)}"


def anchor(row: str) -> str:
    """The name of a row in the address of a page."""
    return re.sub(r"[^a-z0-9]+", "-", row.lower()).strip("-")


def _job(row: str) -> AlertBoard:
    return AlertBoard("lockstep-job", row, (CLUSTER, JOB_ID))


def _node(row: str) -> AlertBoard:
    return AlertBoard("lockstep-node", row, (CLUSTER, NODE))


def _executive(row: str) -> AlertBoard:
    return AlertBoard("lockstep-executive", row, window=_MONTH_RANGE)


_NAMES: Mapping[AlertBoard, str] = {
    _job("Progress"): (
        "JobNotProgressing JobLosing TrainStraggler TrainJobSlower TrainJobUnobserved"
        " TrainJobDeadlineAtRisk TrainJobFailing TrainDataStarved TrainContention"
        " TrainNodePressure TrainNodeLost TrainTelemetryMissing TrainMonitorCostly"
    ),
    _job("Checkpoints"): "WorkAtRisk TrainCheckpointFailed TrainCheckpointInvalid",
    _job("Learning"): "TrainLossBad TrainReplicasDiffer",
    _job("Memory and data"): "TrainOutOfMemory TrainWorkloadUneven",
    _job("Collectives"): "TrainPortFault TrainPacketsLost",
    _job("Nodes of the job"): "TrainGpusIdle TrainTopologyWrong",
    _node("Errors"): "TrainNodeFault",
    _node("Saturation"): "TrainGpuDegraded",
    AlertBoard("lockstep-on-call", "Now"): (
        "ClusterLosing Blind TrainPodEvicted TrainRuleEvaluationSlow"
    ),
    AlertBoard("lockstep-fabric", "Storage"): "TrainStorageDegraded",
    AlertBoard("lockstep-monitor", "The agent itself"): (
        "TrainAgentDown TrainAgentImpaired TrainClockOff TrainCanary"
    ),
    AlertBoard("lockstep-monitor", "The ledger itself"): "TrainLedgerImpaired",
    _executive("Objectives"): "TrainSLOBurn TrainSLOBudgetSpent",
    _executive("Jobs"): "TrainQueueWaitHigh",
}
ALERT_BOARDS: Mapping[str, AlertBoard] = {
    name: answer for answer, names in _NAMES.items() for name in names.split()
}
"""By the name of the alert; the watchdog needs no answer."""
