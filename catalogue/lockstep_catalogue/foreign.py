"""Series of other programs that rules read: Prometheus' own, and those of kube-state-metrics.

Where the program does not run the series are absent, and the rules that read them stay silent.
"""

from lockstep_catalogue.labels import (
    CLUSTER,
    DEVICE,
    JOB_ID,
    NAMESPACE,
    NODE,
    PHASE,
    POD,
    RANK,
    VOLUME,
)
from lockstep_catalogue.metric import Foreign, Label, TargetLabel

TARGET_INSTANCE = TargetLabel(name="instance", help="address of the target")
TARGET_JOB = TargetLabel(name="job", help="name under which Prometheus scrapes the target")
RULE_GROUP = Label(name="rule_group", help="file and name of a group of rules")
KUBE_CONDITION = Label(
    name="condition",
    help="condition of a Kubernetes node",
    values=("Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"),
)
KUBE_STATUS = Label(
    name="status", help="whether the condition holds", values=("true", "false", "unknown")
)
KUBE_REASON = Label(name="reason", help="reason in the status of a pod, such as Evicted")

ALERT_CAUSE = Label(name="cause", help="word for the sign or the cause that an alert is about")
ALERT_ROUTE = Label(name="route", help="owners of jobs where only they repair it")
INCIDENT = Label(name="incident", help="whose loss a page is about: a job, or a cause of several")
WEIGHT = Label(name="weight", help="place of a cause among those of a page, the weightiest first")
ALERT_NAME = Label(name="alertname", help="name of an alert")
ALERT_STATE = Label(name="alertstate", help="state of an alert", values=("pending", "firing"))
ALERT_SEVERITY = Label(
    name="severity", help="whom an alert wakes", values=("critical", "warning", "info", "none")
)

# Where an alert is; each has those that its expression has.
_ALERT_PLACES = (CLUSTER, NODE, JOB_ID, RANK, PHASE, DEVICE, VOLUME)
_PROMETHEUS, _KUBE = "Prometheus", "kube-state-metrics"

GROUP_DURATION = Foreign(
    name="prometheus_rule_group_last_duration_seconds",
    labels=(CLUSTER, TARGET_INSTANCE, RULE_GROUP),
    help="Duration of the last evaluation of a group of rules.",
    source=_PROMETHEUS,
)
GROUP_INTERVAL = Foreign(
    name="prometheus_rule_group_interval_seconds",
    labels=(CLUSTER, TARGET_INSTANCE, RULE_GROUP),
    help="Time between two evaluations of a group of rules.",
    source=_PROMETHEUS,
)
GROUP_MISSED = Foreign(
    name="prometheus_rule_group_iterations_missed_total",
    labels=(CLUSTER, TARGET_INSTANCE, RULE_GROUP),
    help="Evaluations of a group of rules that were skipped.",
    source=_PROMETHEUS,
)
RULE_FAILURES = Foreign(
    name="prometheus_rule_evaluation_failures_total",
    labels=(CLUSTER, TARGET_INSTANCE, RULE_GROUP),
    help="Evaluations of a rule that failed.",
    source=_PROMETHEUS,
)
ALERTS = Foreign(
    name="ALERTS",
    labels=(
        ALERT_NAME,
        ALERT_STATE,
        ALERT_SEVERITY,
        ALERT_CAUSE,
        ALERT_ROUTE,
        WEIGHT,
        *_ALERT_PLACES,
    ),
    help="Alerts that are pending or firing, always 1.",
    source=_PROMETHEUS,
)
ALERTS_FOR_STATE = Foreign(
    name="ALERTS_FOR_STATE",
    labels=(ALERT_NAME, ALERT_SEVERITY, ALERT_CAUSE, WEIGHT, *_ALERT_PLACES),
    help="When an alert that is pending or firing began, in seconds since 1970.",
    source=_PROMETHEUS,
)
KUBE_NODE_CONDITION = Foreign(
    name="kube_node_status_condition",
    labels=(CLUSTER, NODE, KUBE_CONDITION, KUBE_STATUS),
    help="Conditions of a Kubernetes node: 1 on the status that holds.",
    source=_KUBE,
)
KUBE_NODE = Foreign(
    name="kube_node_info",
    labels=(CLUSTER, NODE),
    help="Nodes of Kubernetes, always 1.",
    source=_KUBE,
)
KUBE_CORDONED = Foreign(
    name="kube_node_spec_unschedulable",
    labels=(CLUSTER, NODE),
    help="1 on a node that is cordoned or drained.",
    source=_KUBE,
)
UP = Foreign(
    name="up",
    labels=(CLUSTER, NODE, TARGET_JOB, TARGET_INSTANCE),
    help="1 on a target that answered its last scrape, 0 on one that did not.",
    source=_PROMETHEUS,
)
KUBE_POD_REASON = Foreign(
    name="kube_pod_status_reason",
    labels=(NAMESPACE, POD, NODE, KUBE_REASON),
    help="Reasons in the status of a pod: 1 on the reason that holds.",
    source=_KUBE,
)

FOREIGN = tuple(each for each in vars().values() if isinstance(each, Foreign))
