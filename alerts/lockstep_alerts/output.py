"""Generated files: groups of rules with their recorded series, and Alertmanager's routes."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from lockstep_alerts.alert import AREAS, Alert, Area
from lockstep_alerts.conditions.joins import JOB_LABELS, causes, naming_pod
from lockstep_alerts.objectives.objective import Counter, Objective, sum_in_window
from lockstep_alerts.reading.model import Delivery
from lockstep_alerts.routing import Deployment, alertmanager_config
from lockstep_alerts.routing.tree import OVERNIGHT_FILE, overnight_rules
from lockstep_alerts.rules import losses, objective_series, slices, steps
from lockstep_alerts.rules.parameters import Expression
from lockstep_alerts.spec import Spec
from lockstep_catalogue import FOREIGN, METRICS, ledger, recorded
from lockstep_catalogue.alert_boards import ALERT_BOARDS, AlertBoard
from lockstep_catalogue.foreign import ALERT_CAUSE, INCIDENT, WEIGHT
from lockstep_catalogue.labels import CLUSTER, JOB_CLASS, JOB_ID, NODE, PROJECT, QUEUE
from lockstep_catalogue.ledger import SLO, WINDOW
from lockstep_catalogue.metric import Endpoint, Recorded
from lockstep_catalogue.promql import Matcher
from lockstep_catalogue.recorded import CLUSTER_LOSS, JOB_GPUS, JOB_QUIET
from lockstep_catalogue.windows import ScrapeWindows, spelled
from lockstep_records.file_access.atomic_file import write_atomically

_KUBE = "kube-state-metrics"
_AGENT_SERIES = [
    name for metric in METRICS if metric.endpoint is Endpoint.AGENT for name in metric.sample_names
]
_LEDGER_SERIES = [
    name
    for metric in METRICS
    if metric.endpoint is not Endpoint.AGENT and CLUSTER in metric.labels
    for name in metric.sample_names
]
_KUBE_SERIES = [each.name for each in FOREIGN if each.source == _KUBE and NODE in each.labels]
_MATCHERS = r"(?:\{(?![^}]*\b(?:instance|job)\b(?:=|!))[^}]*\})?(?!\{)"
_RANGE = r"\[[^\]]+\](?: offset \w+)?"


def _selector(series: list[str]) -> str:
    listed = "|".join(sorted(series, key=len, reverse=True))
    return rf"(?<![\w:])(?:{listed})(?![\w:]){_MATCHERS}"


_AT_ONCE, _ALWAYS = _AGENT_SERIES + _KUBE_SERIES, _AGENT_SERIES + _KUBE_SERIES + _LEDGER_SERIES
_CALL = rf"\w+\((?:[\d.]+, )?{_selector(_ALWAYS)}{_RANGE}\)"
_TIMESTAMP = rf"timestamp\({_selector(_ALWAYS)}\)"
_INSTANT = rf"{_selector(_AT_ONCE)}(?!\[)(?: offset \w+)?"
_LABELS = r"\((?![^)]*\b(?:instance|job)\b)[^)]*\)"
# A largest of all is the largest of equal ones too, a group has no value, and a filter asks only
# whether there is a series.
_AGGREGATION = rf"\b(?:max|group) by {_LABELS} \("
_FILTER = rf"\b(?:and|unless) on {_LABELS} "
_OPERAND_ENDS = r"(?=\)|\s*$|\n| (?:and|or|unless) )"
_READS = f"(?:{_CALL}|{_TIMESTAMP}|{_INSTANT})"
_READ = re.compile(rf"{_AGGREGATION}{_READS}\)|{_FILTER}{_READS}{_OPERAND_ENDS}|({_READS})")


def newest_of_equal(expression: str) -> str:
    """The expression with every series of agents, Kubernetes and ledger without its address.

    It takes the largest of equal series: of two scrapes of a counter the later one, of a state that
    only one of them still has the one that has it, and of another gauge either, which are at most
    a scrape apart.
    """
    return _READ.sub(
        lambda found: f"max without (instance, job) ({found[1]})" if found[1] else found[0],
        expression,
    )


def declared_by_spec(
    objectives: Iterable[Objective], windows: ScrapeWindows
) -> dict[Recorded, str]:
    """PromQL of each such series."""
    every = tuple(objectives)
    goals = [
        _constant(ratio, {SLO.name: each.slo, **({ledger.JOB_CLASS.name: name} if name else {})})
        for each in every
        for name, ratio in each.goals.items()
    ]
    limits = [
        _constant(each.min_ratio, {SLO.name: each.slo})
        for each in every
        if each.min_ratio is not None
    ]
    counted = {each.slo: each.counter for each in every if each.counter is not None}
    totals = {slo: each.total_of_five_minutes(windows) for slo, each in counted.items()}
    bad = {slo: each.bad_of_five_minutes(windows) for slo, each in counted.items()}
    series = (
        (recorded.GOAL, goals),
        (recorded.SLICE_LIMIT, limits),
        (recorded.COUNTER_TOTAL, [_labelled(x, {SLO.name: slo}) for slo, x in totals.items()]),
        (recorded.COUNTER_BAD, [_labelled(x, {SLO.name: slo}) for slo, x in bad.items()]),
        (recorded.TOTAL_EVENTS, _with_counters(recorded.TOTAL_EVENTS, counted)),
        (recorded.BAD_EVENTS, _with_counters(recorded.BAD_EVENTS, counted)),
    )
    return {each: "\nor\n".join(constants) for each, constants in series if constants}


def _with_counters(series: Recorded, counted: Mapping[str, Counter]) -> list[str]:
    """The counts of the ledger and of slices, and those of counters in each window."""
    if not counted:
        return []
    parts = [objective_series.COUNTS[series]]
    for slo, counter in counted.items():
        named = Matcher(SLO, "=", slo)
        for window in counter.windows():
            count = sum_in_window(window, is_bad=series is recorded.BAD_EVENTS, matcher=named)
            parts.append(_labelled(count, {WINDOW.name: window}))
    return parts


def _constant(value: float, labels: dict[str, str]) -> str:
    return _labelled(f"vector({value:g})", labels)


def _labelled(text: str, labels: dict[str, str]) -> str:
    for name, label in labels.items():
        text = f'label_replace({text}, "{name}", "{label}", "", "")'
    return text


_EXPRESSIONS: dict[Recorded, Expression] = {
    **steps.EXPRESSIONS,
    **slices.EXPRESSIONS,
    **objective_series.EXPRESSIONS,
    **losses.EXPRESSIONS,
}


def recorded_expressions(series: Iterable[Recorded], spec: Spec) -> dict[Recorded, str]:
    """The PromQL of the series, in their order; without those that the spec leaves empty."""
    found = {}
    by_spec = declared_by_spec(spec.objectives, spec.windows)
    for each in series:
        expression = by_spec.get(each, _EXPRESSIONS.get(each))
        if expression is not None:
            text = expression if isinstance(expression, str) else expression(spec.parameters)
            found[each] = newest_of_equal(text)
    return found


# Where an alert of a site's own spec is answered.
_DEFAULT_BOARD = AlertBoard("lockstep-job", "Progress", JOB_LABELS)


def alert_rule(alert: Alert, windows: ScrapeWindows, delivery: Delivery) -> dict[str, object]:
    """One alerting rule, with the keys of a Prometheus rule file."""
    expression = newest_of_equal(alert.condition.expression(windows))
    rule: dict[str, object] = {"alert": alert.name, "expr": expression}
    if alert.pending:
        rule["for"] = alert.pending.text
    if alert.keep_firing:
        rule["keep_firing_for"] = alert.keep_firing.text
    rule["labels"] = _labels(alert)
    words = f"{alert.description} {alert.condition.evidence()}".strip()
    if alert.is_of_job and "$labels.rank" in alert.summary + words:
        words += naming_pod("$labels", " The rank runs in pod ", ".")
    rule["annotations"] = {
        "summary": alert.summary,
        "description": words,
        "notified_within": spelled(alert.deadline_seconds(windows)),
        **({"causes": causes(alert.is_of_job)} if alert.is_page else {}),
        **_gpu_count(alert),
        **_links(alert, delivery),
    }
    return rule


UNKNOWN = "unknown"
"""Project, queue or class of a job that has not named it."""


def _labels(alert: Alert) -> dict[str, str]:
    """Whom it wakes, and whose it is: of a job by what Prometheus knows of it at that moment.

    A page needs a node's worth of GPUs, or a class that says so.
    """
    labels = {"severity": alert.severity, **({"route": alert.route} if alert.route else {})}
    if alert.weight:
        labels[WEIGHT.name] = f"{alert.weight:02d}"
    if alert.is_page:
        labels[INCIDENT.name] = _incident(alert)
    if not alert.names_owner:
        return labels
    if alert.is_page:
        quiet = _query_of_job(JOB_QUIET.name)
        labels["severity"] = f"{{{{ with {quiet} }}}}warning{{{{ else }}}}critical{{{{ end }}}}"
    identity = _query_of_job(JOB_GPUS.name)
    for label in (PROJECT, QUEUE, JOB_CLASS):
        # Never empty: ALERTS would hold the text of the template instead.
        otherwise = f"{{{{ else }}}}{UNKNOWN}{{{{ end }}}}"
        value = f'{{{{ with . | first | label "{label.name}" }}}}{{{{ . }}}}{otherwise}'
        labels[label.name] = f"{{{{ with {identity} }}}}{value}{otherwise}"
    return labels


def _incident(alert: Alert) -> str:
    """Whose loss it is: pages about one are one notification, and none keeps another quiet."""
    if not alert.is_of_job:
        return f"{{{{ or $labels.{ALERT_CAUSE.name} `{alert.name}` }}}}"
    cause = f'{{{{ . | first | label "{ALERT_CAUSE.name}" }}}}'
    job = f"{{{{ $labels.{JOB_ID.name} }}}}"
    return (
        f"{{{{ with {_query_of_job(CLUSTER_LOSS.name)} }}}}{cause}{{{{ else }}}}{job}{{{{ end }}}}"
    )


def _gpu_count(alert: Alert) -> dict[str, str]:
    """The size of the job: no label, for a job may grow, and stays the same incident."""
    if not alert.is_of_job:
        return {}
    size = f"{{{{ with {_query_of_job(JOB_GPUS.name)} }}}}{{{{ . | first | value }}}}{{{{ end }}}}"
    return {"gpus": size}


def _query_of_job(series: str) -> str:
    matchers = ", ".join(f"{label.name}='%s'" for label in JOB_LABELS)
    values = " ".join(f"$labels.{label.name}" for label in JOB_LABELS)
    return f'query (printf "{series}{{{matchers}}}" {values})'


def severity_of(rule: Mapping[str, Any]) -> str:
    """The severity of a rule, as the spec has it; a page of a small job is a ticket."""
    text = str(rule["labels"]["severity"])
    return "critical" if text.startswith("{{") else text


def _links(alert: Alert, delivery: Delivery) -> dict[str, str]:
    links = {"runbook_url": f"{delivery.runbook_base}{alert.name}.md"}
    of_job = _DEFAULT_BOARD if alert.is_of_job else None
    if board := ALERT_BOARDS.get(alert.name, of_job):
        links["dashboard_url"] = board.address(delivery.dashboard_base)
    return links


def rule_groups(area: Area, spec: Spec, delivery: Delivery) -> list[dict[str, object]]:
    """The group of an area: its recorded series, where it has some, and then its alerts.

    Prometheus evaluates the rules of a group in order, so that a recorded series feeds the next one
    and the alerts within the same evaluation; series that need fewer are a group of their own.
    """
    rare = tuple(each for each in area.records if each.every_seconds)
    often = tuple(each for each in area.records if not each.every_seconds)
    alerts = [alert_rule(each, spec.windows, delivery) for each in spec.alerts_of(area)]
    groups = [_group(area.group, area.every_seconds, often, spec, alerts)]
    if rare:
        groups.insert(0, _group(f"{area.group}-rare", rare[0].every_seconds, rare, spec, []))
    return groups


def _group(
    name: str, seconds: int, records: tuple[Recorded, ...], spec: Spec, alerts: list[dict[str, Any]]
) -> dict[str, object]:
    every = max(seconds, spec.windows.evaluation_seconds)
    rules = [
        {"record": each.name, "expr": text}
        for each, text in recorded_expressions(records, spec).items()
    ]
    return {"name": name, "interval": spelled(every), "rules": [*rules, *alerts]}


GENERATED = Path("alerts/generated")
ROUTES_FILE = "alertmanager.yaml"
_HEAD = "# Generated by `lockstep alerts generate` from the alert spec, slos.yaml. Do not edit.\n"


class _Dumper(yaml.CSafeDumper):
    """Keeps lines of an expression as lines, and repeats a list instead of pointing at it."""

    def ignore_aliases(self, data: object) -> bool:
        # Anchors and aliases are YAML that promtool reads and people do not.
        del data
        return True


def _as_text(dumper: yaml.CSafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _as_text)


def to_yaml(content: Mapping[str, object], head: str = _HEAD) -> str:
    """YAML for people, below a line that says how to generate it again."""
    return head + yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=10_000)


def render(spec: Spec, delivery: Delivery, deployment: Deployment | None = None) -> dict[str, str]:
    """The text of every generated file by its name; routes follow the deployment, if any."""
    delivery = replace(delivery, evaluation_seconds=spec.windows.evaluation_seconds)
    files = {ROUTES_FILE: to_yaml(alertmanager_config(delivery, deployment))}
    for area in AREAS:
        if spec.alerts_of(area):
            files[area.rules_file] = to_yaml({"groups": rule_groups(area, spec, delivery)})
    tickets = tuple(each.name for each in spec.alerts if each.severity in ("critical", "warning"))
    if deployment and (groups := overnight_rules(tickets, delivery, deployment)):
        files[OVERNIGHT_FILE] = to_yaml({"groups": groups})
    return files


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Writes every file into the folder, which is created where it is missing; or OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_atomically(folder / name, text)


def differing(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Names of the files that are missing in the folder or have another text there."""

    def current(name: str) -> str | None:
        path = folder / name
        return path.read_text(encoding="utf-8") if path.is_file() else None

    return [name for name, text in files.items() if current(name) != text]
