"""Turns symptoms into the groups of a Prometheus rule file."""

from collections.abc import Iterable

from lockstep_alerts.areas import Area
from lockstep_alerts.conditions.joins import JOB_LABELS
from lockstep_alerts.output.recording import recorded_expressions
from lockstep_alerts.reading.model import Delivery
from lockstep_alerts.spec import Spec
from lockstep_alerts.symptom import Symptom
from lockstep_catalogue.metric import Recorded
from lockstep_catalogue.windows import ScrapeWindows, spelled


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
    links = {"runbook_url": f"{delivery.runbook_base}{symptom.alert}.md"}
    if symptom.is_of_job:
        board = f"{delivery.dashboard_base}/d/lockstep-job"
        variables = [
            f"var-{label.name}={{{{ urlquery $labels.{label.name} }}}}" for label in JOB_LABELS
        ]
        links["dashboard_url"] = f"{board}?{'&'.join(variables)}"
    return links


def rule_groups(area: Area, spec: Spec, delivery: Delivery) -> list[dict[str, object]]:
    """The group of an area's recorded series, where it has some, and that of its alerts.

    Prometheus evaluates the rules of a group in order, so that one recorded series can feed the
    next within the same evaluation.
    """
    every = max(area.every_seconds, spec.windows.evaluation_seconds)
    alerts = [alert_rule(each, spec.windows, delivery) for each in spec.alerts_of(area)]
    groups = [_group(area.alert_group, every, alerts)]
    if area.records:
        groups.insert(0, _group(area.recording_group, every, _records(area.records, spec)))
    return groups


def _records(series: Iterable[Recorded], spec: Spec) -> list[dict[str, object]]:
    expressions = recorded_expressions(series, spec)
    return [{"record": each.name, "expr": text} for each, text in expressions.items()]


def _group(name: str, every_seconds: int, rules: list[dict[str, object]]) -> dict[str, object]:
    return {"name": name, "interval": spelled(every_seconds), "rules": rules}
