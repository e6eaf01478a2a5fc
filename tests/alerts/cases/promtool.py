"""Every alert's cases as promtool reads them: it fires by its deadline, or it keeps silent."""

from dataclasses import replace

from lockstep_alerts.areas import AREAS, Area
from lockstep_alerts.output.groups import UNKNOWN, rule_groups
from lockstep_alerts.output.write import render, to_yaml
from lockstep_alerts.reading.model import Delivery, delivery_seconds
from lockstep_alerts.spec import Spec
from lockstep_alerts.symptom import Symptom
from lockstep_catalogue.windows import ScrapeWindows, spelled

from .case import Case, find_cases
from .synthetic import Timing

_BRIEF_SECONDS = 120


def timing_of(symptom: Symptom, windows: ScrapeWindows) -> Timing:
    """When an alert has to fire."""
    seconds = symptom.deadline_seconds(windows) - delivery_seconds(
        symptom.severity, windows.evaluation_seconds
    )
    return Timing(windows=windows, fires_within_seconds=seconds)


def every_case(symptom: Symptom, windows: ScrapeWindows) -> list[Case]:
    """The cases of one alert with the second at which each is evaluated, firing ones first."""
    timing = timing_of(symptom, windows)
    return [
        case if case.at_seconds is not None else replace(case, at_seconds=timing.fires_by_seconds)
        for case in find_cases(symptom.condition, timing)
    ]


def cases_of(symptom: Symptom, windows: ScrapeWindows) -> list[Case]:
    """The cases of one alert that are tried.

    Of an alert that waits for minutes only its limits are tried, by the first case that fires and
    the first that does not: each further one takes promtool a second.
    """
    cases = every_case(symptom, windows)
    if symptom.pending is None or symptom.pending.seconds <= _BRIEF_SECONDS:
        return cases
    return [cases[0], next(case for case in cases if case.fires is None)]


def promtool_test(symptom: Symptom, case: Case, windows: ScrapeWindows) -> dict[str, object]:
    """One test of a promtool test file.

    It evaluates the series ALERTS: promtool's own alert_rule_test would compare the annotations as
    well, and a word changed in a summary would fail every case.
    """
    selector = f'ALERTS{{alertname="{symptom.alert}", alertstate="firing"}}'
    expected: list[dict[str, object]] = []
    if case.fires is not None:
        own = {"alertname": symptom.alert, "alertstate": "firing", "severity": symptom.severity}
        if symptom.route:
            own["route"] = symptom.route
        if symptom.names_owner:
            own |= dict.fromkeys(("project", "queue", "class"), UNKNOWN)
        labels = ", ".join(f'{name}="{value}"' for name, value in {**own, **case.fires}.items())
        expected.append({"labels": f"ALERTS{{{labels}}}", "value": 1})
    outcome = "fires" if expected else "is silent"
    return {
        "name": f"{symptom.alert} {outcome}: {case.name}",
        "interval": f"{windows.scrape_seconds}s",
        "input_series": [
            {"series": each.series, "values": each.course.promtool(windows.scrape_seconds)}
            for each in case.series
        ],
        "promql_expr_test": [
            {"expr": selector, "eval_time": f"{case.at_seconds}s", "exp_samples": expected}
        ],
    }


def cases_file(area: Area) -> str:
    """Name of the file with the cases of an area, beside that of its rules."""
    return area.rules_file.replace(".rules.", ".tests.")


def rule_tests(spec: Spec) -> dict[str, str]:
    """The text of every file of rule tests by its name."""
    return {
        cases_file(area): to_yaml(_tests_of(area, spec, symptoms))
        for area in AREAS
        if (symptoms := spec.alerts_of(area))
    }


def rules_and_tests(spec: Spec) -> dict[str, str]:
    """The same with the rules that they test, and the Alertmanager configuration."""
    return {**render(spec, Delivery()), **rule_tests(spec)}


def _tests_of(area: Area, spec: Spec, symptoms: tuple[Symptom, ...]) -> dict[str, object]:
    every = max(symptom.evaluation_seconds(spec.windows) for symptom in symptoms)
    return {
        "rule_files": [area.rules_file],
        "evaluation_interval": spelled(every),
        "group_eval_order": [group["name"] for group in rule_groups(area, spec, Delivery())],
        "tests": [
            promtool_test(symptom, case, spec.windows)
            for symptom in symptoms
            for case in cases_of(symptom, spec.windows)
        ],
    }
