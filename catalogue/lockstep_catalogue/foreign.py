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

# Declarations, one after the other.
# fmt: off

TARGET_INSTANCE = TargetLabel("instance", "address of the target")
TARGET_JOB = TargetLabel("job", "name under which Prometheus scrapes the target")
RULE_GROUP = Label("rule_group", "file and name of a group of rules")
KUBE_CONDITION = Label("condition", "condition of a Kubernetes node",
    ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"))
KUBE_STATUS = Label("status", "whether the condition holds", ("true", "false", "unknown"))
KUBE_REASON = Label("reason", "reason in the status of a pod, such as Evicted")

ALERT_CAUSE = Label("cause", "word for the sign or the cause that an alert is about")
ALERT_ROUTE = Label("route", "owners of jobs where only they repair it")
INCIDENT = Label("incident", "whose loss a page is about: a job, or a cause of several")
WEIGHT = Label("weight", "place of a cause among those of a page, the weightiest first")
ALERT_NAME = Label("alertname", "name of an alert")
ALERT_STATE = Label("alertstate", "state of an alert", ("pending", "firing"))
ALERT_SEVERITY = Label("severity", "whom an alert wakes", ("critical", "warning", "info", "none"))

# Where an alert is; each has those that its expression has.
_ALERT_PLACES = (CLUSTER, NODE, JOB_ID, RANK, PHASE, DEVICE, VOLUME)
_PROMETHEUS, _KUBE = "Prometheus", "kube-state-metrics"

GROUP_DURATION = Foreign("prometheus_rule_group_last_duration_seconds",
    (CLUSTER, TARGET_INSTANCE, RULE_GROUP), "Duration of the last evaluation of a group of rules.",
    _PROMETHEUS)
GROUP_INTERVAL = Foreign("prometheus_rule_group_interval_seconds",
    (CLUSTER, TARGET_INSTANCE, RULE_GROUP), "Time between two evaluations of a group of rules.",
    _PROMETHEUS)
GROUP_MISSED = Foreign("prometheus_rule_group_iterations_missed_total",
    (CLUSTER, TARGET_INSTANCE, RULE_GROUP), "Evaluations of a group of rules that were skipped.",
    _PROMETHEUS)
RULE_FAILURES = Foreign("prometheus_rule_evaluation_failures_total",
    (CLUSTER, TARGET_INSTANCE, RULE_GROUP), "Evaluations of a rule that failed.", _PROMETHEUS)
ALERTS = Foreign("ALERTS",
    (ALERT_NAME, ALERT_STATE, ALERT_SEVERITY, ALERT_CAUSE, ALERT_ROUTE, WEIGHT, *_ALERT_PLACES),
    "Alerts that are pending or firing, always 1.", _PROMETHEUS)
ALERTS_FOR_STATE = Foreign("ALERTS_FOR_STATE",
    (ALERT_NAME, ALERT_SEVERITY, ALERT_CAUSE, WEIGHT, *_ALERT_PLACES),
    "When an alert that is pending or firing began, in seconds since 1970.", _PROMETHEUS)
KUBE_NODE_CONDITION = Foreign("kube_node_status_condition",
    (CLUSTER, NODE, KUBE_CONDITION, KUBE_STATUS),
    "Conditions of a Kubernetes node: 1 on the status that holds.", _KUBE)
KUBE_NODE = Foreign("kube_node_info", (CLUSTER, NODE), "Nodes of Kubernetes, always 1.", _KUBE)
KUBE_CORDONED = Foreign("kube_node_spec_unschedulable", (CLUSTER, NODE),
    "1 on a node that is cordoned or drained.", _KUBE)
UP = Foreign("up", (CLUSTER, NODE, TARGET_JOB, TARGET_INSTANCE),
    "1 on a target that answered its last scrape, 0 on one that did not.", _PROMETHEUS)
KUBE_POD_REASON = Foreign("kube_pod_status_reason", (NAMESPACE, POD, NODE, KUBE_REASON),
    "Reasons in the status of a pod: 1 on the reason that holds.", _KUBE)

FOREIGN = tuple(each for each in vars().values() if isinstance(each, Foreign))
