"""Rows of the on-call board about what failed, of jobs and of nodes."""

from lockstep_catalogue import (
    Unit,
    events,
    fabric,
    fabric_ports,
    health,
    job_watch,
    ledger,
    training,
    verdicts,
)
from lockstep_catalogue.fabric_labels import PORT, PORT_REASON
from lockstep_catalogue.labels import (
    CLUSTER,
    DEVICE,
    JOB_ID,
    NODE,
    OUTCOME,
    PCI_BUS_ID,
    PROJECT,
    QUEUE,
    RANK,
    VERDICT,
)
from lockstep_catalogue.metric import Label
from lockstep_catalogue.promql import by, eq, one_of
from lockstep_dashboards.panel import Row
from lockstep_dashboards.selection import Selection, above_zero
from lockstep_dashboards.series_panels import table
from lockstep_dashboards.variables import THIS_CLUSTER

_ALL = Selection((THIS_CLUSTER,), ())
_NODES = Selection((THIS_CLUSTER,), (CLUSTER, NODE))
_JOBS = Selection((THIS_CLUSTER,), (CLUSTER, JOB_ID))
_ALERT = Label(name="alertname", help="name of the alert")
_SEVERITY = Label(name="severity", help="critical wakes somebody, warning makes a ticket")
_FIRING = 'ALERTS{alertstate="firing", cluster=~"$cluster"}'
_FRESH_SECONDS = 60
_NO_TROUBLE = "a cluster without trouble has none"
_BAD = one_of(VERDICT, "degraded", "failed")


FAILURES = Row(
    title="Failures",
    panels=(
        table(
            ledger.JOBS_FINISHED,
            above_zero(
                by(
                    "sum",
                    _ALL.increase(ledger.JOBS_FINISHED, eq(ledger.JOB_OUTCOME, "failed")),
                    ledger.FAILURE_CLASS,
                    PROJECT,
                    QUEUE,
                )
            ),
            title="Failed jobs",
            note="Within the range.",
            good="few, and of class user.",
            otherwise="`lockstep ledger list --failed` names the jobs, nodes and first errors.",
            columns=(ledger.FAILURE_CLASS, PROJECT, QUEUE),
            width=8,
            may_be_empty=_NO_TROUBLE,
        ),
        table(
            training.CHECKPOINTS,
            above_zero(
                _JOBS.by("sum", _JOBS.increase(training.CHECKPOINTS, eq(OUTCOME, "failed")))
            ),
            title="Failed checkpoints",
            note="Within the range.",
            good="none.",
            otherwise="look at storage: the board of fabric and storage, row of storage.",
            columns=(JOB_ID,),
            width=5,
            may_be_empty=_NO_TROUBLE,
        ),
        table(
            job_watch.HANG_MISSING,
            above_zero(
                _JOBS.by(
                    "max", _JOBS.of(job_watch.HANG_MISSING), NODE, RANK, job_watch.PHASE_AT_HANG
                )
            ),
            title="Ranks that others wait for",
            good="none.",
            otherwise="this is the culprit of the hang: its stacks are on its node.",
            columns=(JOB_ID, NODE, RANK, job_watch.PHASE_AT_HANG),
            width=11,
            may_be_empty=_NO_TROUBLE,
        ),
    ),
)
TROUBLED_NODES = Row(
    title="Nodes",
    panels=(
        table(
            verdicts.NODE_HEALTH,
            above_zero(
                _NODES.by(
                    "max", _NODES.of(verdicts.NODE_HEALTH, _BAD), VERDICT, verdicts.NODE_REASON
                )
            ),
            title="Nodes that are not well",
            good="none.",
            otherwise="drain a failed node; a click on it opens its board.",
            columns=(NODE, VERDICT, verdicts.NODE_REASON),
            width=8,
            may_be_empty=_NO_TROUBLE,
        ),
        table(
            events.GPU_XID_INCIDENTS,
            above_zero(
                _NODES.by("sum", _NODES.increase(events.GPU_XID_INCIDENTS), PCI_BUS_ID, events.XID)
            ),
            title="Xids",
            note="New ones within the range.",
            good="none; 13, 31 and 43 are of the application.",
            otherwise="the node's board says class, severity and remedy of each.",
            columns=(NODE, PCI_BUS_ID, events.XID),
            width=8,
            may_be_empty=_NO_TROUBLE,
        ),
        table(
            fabric_ports.PORT_HEALTH,
            above_zero(
                _NODES.by(
                    "max", _NODES.of(fabric_ports.PORT_HEALTH, _BAD), DEVICE, PORT, PORT_REASON
                )
            ),
            title="Ports that are not well",
            good="none.",
            otherwise="a click on the adapter opens the fabric's board.",
            columns=(NODE, DEVICE, PORT, PORT_REASON),
            width=8,
            may_be_empty=_NO_TROUBLE,
        ),
        table(
            health.AGENT_TICK,
            above_zero(
                f"time() - {_NODES.by('max', _NODES.over_range('last', health.AGENT_TICK))}"
                f" > {_FRESH_SECONDS}"
            ),
            title="Silent nodes",
            note="Seconds since an agent that was seen in the range rendered.",
            good="none.",
            otherwise="the node is down, or its agent is: `systemctl status lockstep-agent`.",
            unit=Unit.SECONDS,
            columns=(NODE,),
            width=6,
            may_be_empty=_NO_TROUBLE,
        ),
        table(
            fabric.NET_CARRIER_CHANGES,
            above_zero(_NODES.by("sum", _NODES.increase(fabric.NET_CARRIER_CHANGES), DEVICE)),
            title="Links that went up or down",
            note="Ethernet, within the range.",
            good="none.",
            otherwise="cable or transceiver, or the switch's port.",
            columns=(NODE, DEVICE),
            width=8,
            may_be_empty=_NO_TROUBLE,
        ),
        table(
            events.HOST_INCIDENTS,
            above_zero(
                _NODES.by("sum", _NODES.increase(events.HOST_INCIDENTS), events.HOST_INCIDENT)
            ),
            title="Incidents of hosts",
            note="Within the range.",
            good="none.",
            otherwise="the kernel log of the node has the lines: `lockstep doctor`.",
            columns=(NODE, events.HOST_INCIDENT),
            width=10,
            may_be_empty=_NO_TROUBLE,
        ),
    ),
)
