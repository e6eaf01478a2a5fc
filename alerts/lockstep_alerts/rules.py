"""Turns symptoms into the groups of a Prometheus rule file."""

from collections.abc import Iterable

from lockstep_alerts.conditions.joins import JOB_LABELS
from lockstep_alerts.model import Delivery
from lockstep_alerts.objectives.records import records
from lockstep_alerts.objectives.symptoms import EVERY_SECONDS
from lockstep_alerts.spec import Spec
from lockstep_alerts.symptom import Symptom
from lockstep_catalogue import recorded, recorded_goodput
from lockstep_catalogue.metric import Recorded
from lockstep_catalogue.windows import ScrapeWindows, spelled

RECORDING_GROUP = "lockstep-train.rules"
ALERT_GROUP = "lockstep-train"
OBJECTIVE_RECORDING_GROUP = "lockstep-slo.rules"
_OF_JOBS = (*recorded.RECORDED, *recorded_goodput.RECORDED)
OBJECTIVE_ALERT_GROUP = "lockstep-slo"


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


def rule_groups(spec: Spec, delivery: Delivery) -> list[dict[str, object]]:
    """The recording group of jobs and the alerts over it.

    Prometheus evaluates the rules of a group in order, so that one recorded series can feed the
    next within the same evaluation.
    """
    every = spec.windows.evaluation_seconds
    alerts = [alert_rule(symptom, spec.windows, delivery) for symptom in spec.symptoms]
    return [
        _group(RECORDING_GROUP, every, _records(_OF_JOBS, spec.windows)),
        _group(ALERT_GROUP, every, alerts),
    ]


def objective_groups(spec: Spec, delivery: Delivery) -> list[dict[str, object]]:
    """The recording group of objectives and the alerts over it."""
    every = max(EVERY_SECONDS, spec.windows.evaluation_seconds)
    alerts = [alert_rule(symptom, spec.windows, delivery) for symptom in spec.objective_symptoms]
    return [
        _group(
            OBJECTIVE_RECORDING_GROUP,
            every,
            [
                {"record": series.name, "expr": expression}
                for series, expression in records(spec.objectives, spec.windows)
            ],
        ),
        _group(OBJECTIVE_ALERT_GROUP, every, alerts),
    ]


def _records(series: Iterable[Recorded], windows: ScrapeWindows) -> list[dict[str, object]]:
    return [{"record": each.name, "expr": each.expression(windows)} for each in series]


def _group(name: str, every_seconds: int, rules: list[dict[str, object]]) -> dict[str, object]:
    return {"name": name, "interval": spelled(every_seconds), "rules": rules}
