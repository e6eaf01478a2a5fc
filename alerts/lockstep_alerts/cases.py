"""Every alert's cases as promtool reads them: it fires by its deadline, or it keeps silent."""

from lockstep_alerts.conditions.condition import Case
from lockstep_alerts.spec import Symptom
from lockstep_alerts.synthetic import SCRAPE_SECONDS


def cases_of(symptom: Symptom) -> list[Case]:
    """The cases of one alert, firing ones first."""
    return symptom.condition.cases(symptom.deadline.seconds)


def promtool_test(symptom: Symptom, case: Case) -> dict[str, object]:
    """One test of a promtool test file.

    It evaluates the series ALERTS: promtool's own alert_rule_test would compare the annotations as
    well, and a word changed in a summary would fail every case.
    """
    selector = f'ALERTS{{alertname="{symptom.alert}", alertstate="firing"}}'
    expected: list[dict[str, object]] = []
    if case.fires is not None:
        own = {"alertname": symptom.alert, "alertstate": "firing", "severity": symptom.severity}
        labels = ", ".join(f'{name}="{value}"' for name, value in {**own, **case.fires}.items())
        expected.append({"labels": f"ALERTS{{{labels}}}", "value": 1})
    outcome = "fires" if expected else "is silent"
    return {
        "name": f"{symptom.alert} {outcome}: {case.name}",
        "interval": f"{SCRAPE_SECONDS}s",
        "input_series": [
            {"series": series.series, "values": series.values} for series in case.series
        ],
        "promql_expr_test": [
            {"expr": selector, "eval_time": f"{case.at_seconds}s", "exp_samples": expected}
        ],
    }
