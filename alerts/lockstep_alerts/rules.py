"""Turns symptoms into the groups of a Prometheus rule file."""

from lockstep_alerts.conditions.joins import JOB_LABELS
from lockstep_alerts.model import Delivery
from lockstep_alerts.spec import Spec, Symptom
from lockstep_catalogue import recorded
from lockstep_catalogue.windows import ScrapeWindows, spelled

RECORDING_GROUP = "lockstep-train.rules"
ALERT_GROUP = "lockstep-train"


def alert_rule(symptom: Symptom, windows: ScrapeWindows, delivery: Delivery) -> dict[str, object]:
    """One alerting rule, with the keys of a Prometheus rule file."""
    expression = symptom.condition.expression(windows)
    rule: dict[str, object] = {"alert": symptom.alert, "expr": expression}
    if symptom.pending:
        rule["for"] = symptom.pending.text
    if symptom.keep_firing:
        rule["keep_firing_for"] = symptom.keep_firing.text
    rule["labels"] = {"severity": symptom.severity}
    rule["annotations"] = {
        "summary": symptom.summary,
        "description": f"{symptom.description} {symptom.condition.evidence()}".strip(),
        "notified_within": spelled(symptom.deadline_seconds(windows)),
        **_links(symptom, delivery),
    }
    return rule


def _links(symptom: Symptom, delivery: Delivery) -> dict[str, str]:
    board = f"{delivery.dashboard_base}/d/lockstep-job"
    variables = [
        f"var-{label.name}={{{{ urlquery $labels.{label.name} }}}}" for label in JOB_LABELS
    ]
    return {
        "runbook_url": f"{delivery.runbook_base}{symptom.alert}.md",
        "dashboard_url": f"{board}?{'&'.join(variables)}",
    }


def rule_groups(spec: Spec, delivery: Delivery) -> list[dict[str, object]]:
    """The recording group and the alerts over it.

    Prometheus evaluates the rules of a group in order, so that one recorded series can feed the
    next within the same evaluation.
    """
    windows = spec.windows
    interval = spelled(windows.evaluation_seconds)
    records = [
        {"record": series.name, "expr": series.expression(windows)} for series in recorded.RECORDED
    ]
    alerts = [alert_rule(symptom, windows, delivery) for symptom in spec.symptoms]
    return [
        {"name": RECORDING_GROUP, "interval": interval, "rules": records},
        {"name": ALERT_GROUP, "interval": interval, "rules": alerts},
    ]
