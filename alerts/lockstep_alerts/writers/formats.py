"""Files for each kind of ruler: rule files, objects of operators, namespaces of Mimir."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import click
import yaml

from lockstep_alerts.output import ROUTES_FILE, to_yaml
from lockstep_alerts.reading.entry import SpecError
from lockstep_catalogue import METRICS
from lockstep_catalogue.metric import Kind
from lockstep_catalogue.promql import LE
from lockstep_prometheus import promql

FILE_NAME = "lockstep.alertmanagerconfig.yaml"
_API = "monitoring.coreos.com/v1alpha1"
_OPERATORS = ("=~", "!~", "!=", "=")
# Keys of Alertmanager that Go programs spell otherwise than by capitals at the underscores.
_SPELLED = {"api_url": "apiURL", "url": "url"}
_SECRET_FIELDS = {
    "routing_key_file": "routingKey",
    "api_key_file": "apiKey",
    "api_url_file": "apiURL",
    "auth_password_file": "authPassword",
    "url_file": "urlSecret",
}
_UTC = ("UTC", "Etc/UTC")


def alertmanager_object(
    config: Mapping[str, Any], namespace: str, labels: dict[str, str], secret: str
) -> str:
    """Text of the object, with keys of its Secret by base names; SpecError for a time zone."""
    spec: dict[str, Any] = {
        "route": _route(config["route"]),
        "receivers": [_receiver(each, secret) for each in config["receivers"]],
    }
    if windows := config.get("time_intervals"):
        spec["muteTimeIntervals"] = [_window(each) for each in windows]
    return to_yaml(
        {
            "apiVersion": _API,
            "kind": "AlertmanagerConfig",
            "metadata": {"name": "lockstep", "namespace": namespace, "labels": labels},
            "spec": spec,
        }
    )


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return _SPELLED.get(name, first + "".join(word.capitalize() for word in others))


def _matcher(text: str) -> dict[str, str]:
    operator = next(each for each in _OPERATORS if each in text)
    name, _, value = text.partition(operator)
    return {"name": name, "value": value.strip('"'), "matchType": operator}


def _route(route: Mapping[str, Any]) -> dict[str, Any]:
    special: dict[str, Callable[[Any], object]] = {
        "matchers": lambda matchers: [_matcher(each) for each in matchers],
        "routes": lambda routes: [_route(each) for each in routes],
    }
    return {
        _camel(key): special[key](value) if key in special else value
        for key, value in route.items()
    }


def _receiver(receiver: Mapping[str, Any], secret: str) -> dict[str, Any]:
    return {
        _camel(key): value if key == "name" else [_entry(each, secret) for each in value]
        for key, value in receiver.items()
    }


def _entry(entry: Mapping[str, Any], secret: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in entry.items():
        if key in _SECRET_FIELDS:
            fields[_SECRET_FIELDS[key]] = _key(value, secret)
        elif key == "http_config":
            file = value["authorization"]["credentials_file"]
            fields["httpConfig"] = {"authorization": {"credentials": _key(file, secret)}}
        elif key == "headers":
            fields[key] = [{"key": name, "value": text} for name, text in value.items()]
        else:
            fields[_camel(key)] = value
    return fields


def _key(file: str, secret: str) -> dict[str, str]:
    return {"name": secret, "key": PurePath(file).name}


def _window(window: Mapping[str, Any]) -> dict[str, Any]:
    for interval in window["time_intervals"]:
        if interval["location"] not in _UTC:
            raise SpecError(
                f"{window['name']}: time_zone {interval['location']!r}: an object knows "
                "no time zones; write the hours in UTC, or mount alertmanager.yaml"
            )
    return {
        "name": window["name"],
        "timeIntervals": [_interval(each) for each in window["time_intervals"]],
    }


def _interval(interval: Mapping[str, Any]) -> dict[str, Any]:
    fields = {_camel(key): value for key, value in interval.items() if key != "location"}
    if days := fields.get("daysOfMonth"):
        fields["daysOfMonth"] = [{"start": int(day), "end": int(day)} for day in days]
    if times := fields.get("times"):
        fields["times"] = [
            {"startTime": each["start_time"], "endTime": each["end_time"]} for each in times
        ]
    return fields


RULES_SUFFIX = ".rules.yaml"
_HISTOGRAMS = {metric.name for metric in METRICS if metric.kind is Kind.HISTOGRAM}

Group = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleFile:
    """One rule file: its name without suffix, and its groups in order."""

    stem: str
    groups: tuple[Group, ...]


def rule_files(files: Mapping[str, str]) -> Iterator[RuleFile]:
    """The rule files among rendered files."""
    for name, text in files.items():
        if name.endswith(RULES_SUFFIX):
            groups = yaml.safe_load(text)["groups"]
            yield RuleFile(stem=name.removesuffix(RULES_SUFFIX), groups=tuple(groups))


def drop_words(file: RuleFile, words: tuple[str, ...]) -> RuleFile:
    """The file for a ruler that refuses these words, such as ``keep_firing_for``.

    An alert without ``keep_firing_for`` resolves as soon as its condition does. It is not written
    into the expression: over a window a condition that held for a moment would reach ``for``.
    """

    def plain(fields: Group) -> Group:
        return {name: value for name, value in fields.items() if name not in words}

    groups = tuple(
        plain({**group, "rules": [plain(rule) for rule in group["rules"]]}) for group in file.groups
    )
    return RuleFile(stem=file.stem, groups=groups)


def with_native_histograms(file: RuleFile) -> RuleFile:
    """The file for a Prometheus that stores histograms as native ones with custom buckets."""
    groups = tuple(
        {**group, "rules": [{**rule, "expr": native(rule["expr"])} for rule in group["rules"]]}
        for group in file.groups
    )
    return RuleFile(stem=file.stem, groups=groups)


def native(expression: str) -> str:
    """An expression over classic buckets over native histograms; SpecError for single buckets."""
    reads = list(promql.selectors(expression))
    buckets = [each for each in reads if _part(each.name)[1] == "bucket"]
    if any(label == LE.name for each in buckets for label, _, _ in each.matchers):
        raise SpecError(
            f"{expression}: selects buckets by their bound, which --histograms native has none of; "
            "leave the option out, or count something else"
        )
    return promql.rewrite(expression, _as_native)


def _part(name: str) -> tuple[str, str]:
    """A histogram and ``bucket``, ``sum`` or ``count``, of the name of one of its series."""
    base, _, part = name.rpartition("_")
    return (base, part) if base in _HISTOGRAMS else (name, "")


def _as_native(node: promql.Expr) -> str | None:
    """What a node is over native histograms; None of what stays.

    A native histogram is one series: its sum and its count are functions of it.
    """
    match node:
        case promql.VectorSelector():
            name, part = _part(node.name or "")
            return str(node).replace(node.name or "", name, 1) if part == "bucket" else None
        case promql.Call() if node.func.name == "rate":
            [selector] = (
                each for each in promql.nodes(node) if isinstance(each, promql.VectorSelector)
            )
            name, part = _part(selector.name or "")
            if part in ("sum", "count"):
                return f"histogram_{part}({str(node).replace(f'{name}_{part}', name, 1)})"
        case promql.AggregateExpr() if node.modifier and LE.name in node.modifier.labels:
            labels = ", ".join(label for label in node.modifier.labels if label != LE.name)
            parameter = "" if node.param is None else f"{node.param}, "
            return f"{node.op} by ({labels}) ({parameter}{node.expr})"
    return None


MAX_OBJECT_BYTES = 512 * 1024
"""The operator refuses more: half of what a ConfigMap may hold."""


PROMETHEUS_RULE, VM_RULE = "PrometheusRule", "VMRule"
_API_VERSIONS = {
    PROMETHEUS_RULE: "monitoring.coreos.com/v1",
    VM_RULE: "operator.victoriametrics.com/v1beta1",
}


def rule_objects(
    files: list[RuleFile], kind: str, namespace: str, labels: dict[str, str]
) -> dict[str, str]:
    """Text of the objects by file, under the operator's limit; SpecError for a larger group."""
    texts = {}
    for file in files:
        parts = list(_parts(file, kind, namespace, labels))
        for number, text in enumerate(parts, 1):
            suffix = f"-{number}" if len(parts) > 1 else ""
            texts[f"{file.stem}{suffix}.{kind.lower()}.yaml"] = text
    return texts


def _parts(file: RuleFile, kind: str, namespace: str, labels: dict[str, str]) -> Iterator[str]:
    def text(groups: list[Group], number: int) -> str:
        name = f"{file.stem}-{number}" if number > 1 else file.stem
        metadata = {"name": name, "namespace": namespace, "labels": labels}
        return to_yaml(
            {
                "apiVersion": _API_VERSIONS[kind],
                "kind": kind,
                "metadata": metadata,
                "spec": {"groups": groups},
            }
        )

    number = 1
    held: list[Group] = []
    for group in file.groups:
        if held and _too_large(text([*held, group], number)):
            yield text(held, number)
            number, held = number + 1, []
        held.append(group)
        if _too_large(text(held, number)):
            raise SpecError(
                f"group {group['name']}: is larger than the {MAX_OBJECT_BYTES} bytes of an object; "
                "shorten its descriptions"
            )
    yield text(held, number)


def _too_large(text: str) -> bool:
    return len(text.encode()) >= MAX_OBJECT_BYTES


_MIMIR_SUFFIX = ".mimir.yaml"
MAX_RULES_PER_GROUP = 20
"""Mimir's default limit, ``ruler_max_rules_per_rule_group``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A ruler, and how its objects are named.

    Attributes:
        lacks: words of a rule that the ruler refuses.
        native_histograms: whether it stores histograms as native ones.
        key_store: name of the Secret with the secrets of receivers.
    """

    format: str = "prometheus"
    lacks: tuple[str, ...] = ()
    native_histograms: bool = False
    namespace: str = "lockstep"
    labels: Mapping[str, str]
    key_store: str


Writer = Callable[[list[RuleFile], Mapping[str, str], Target], dict[str, str]]


def _prometheus(
    files: list[RuleFile], rendered: Mapping[str, str], target: Target
) -> dict[str, str]:
    del target
    rules = {f"{each.stem}{RULES_SUFFIX}": to_yaml({"groups": each.groups}) for each in files}
    return {**rendered, **rules}


def _operator(files: list[RuleFile], rendered: Mapping[str, str], target: Target) -> dict[str, str]:
    labels = dict(target.labels)
    config = yaml.safe_load(rendered[ROUTES_FILE])
    return {
        FILE_NAME: alertmanager_object(config, target.namespace, labels, target.key_store),
        **rule_objects(files, PROMETHEUS_RULE, target.namespace, labels),
    }


def _victoriametrics(
    files: list[RuleFile], rendered: Mapping[str, str], target: Target
) -> dict[str, str]:
    """Rule files for vmalert itself, and objects for the operator; Alertmanager is the same."""
    return {
        **_prometheus(files, rendered, target),
        **rule_objects(files, VM_RULE, target.namespace, dict(target.labels)),
    }


def _mimir(files: list[RuleFile], rendered: Mapping[str, str], target: Target) -> dict[str, str]:
    """Namespaces only, as ``mimirtool`` takes them: its Alertmanager refuses secrets in files."""
    del target
    namespaces = {
        f"{file.stem}{_MIMIR_SUFFIX}": to_yaml({"namespace": file.stem, "groups": file.groups})
        for file in files
    }
    return {ROUTES_FILE: rendered[ROUTES_FILE], **namespaces}


FORMATS: Mapping[str, Writer] = {
    "prometheus": _prometheus,
    "prometheus-operator": _operator,
    "victoriametrics": _victoriametrics,
    "mimir": _mimir,
}


def render_for(target: Target, rendered: Mapping[str, str]) -> dict[str, str]:
    """The files of a target by name; SpecError where an object cannot hold what it must."""
    files = [drop_words(each, target.lacks) for each in rule_files(rendered)]
    if target.native_histograms:
        files = [with_native_histograms(each) for each in files]
    return FORMATS[target.format](files, rendered, target)


def remark_on(target: Target, rendered: Mapping[str, str]) -> str:
    """What a person must know who loads the files; empty where there is nothing."""
    if target.format != "mimir":
        return ""
    # The rules of a group read one another in order and cannot be parted.
    groups = [
        group["name"]
        for name, text in rendered.items()
        if name.endswith(_MIMIR_SUFFIX)
        for group in yaml.safe_load(text)["groups"]
        if len(group["rules"]) > MAX_RULES_PER_GROUP
    ]
    if not groups:
        return ""
    return (
        f"{', '.join(groups)}: more than {MAX_RULES_PER_GROUP} rules, in order; raise Mimir's "
        "limit ruler_max_rules_per_rule_group"
    )


LACKS = ("keep_firing_for",)
_PAIR = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9./_-]{0,251}[A-Za-z0-9])?)=([A-Za-z0-9._-]{0,63})")
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_OPTIONS = (
    click.option(
        "--format",
        "ruler",
        type=click.Choice(tuple(FORMATS)),
        default="prometheus",
        show_default=True,
        help="What evaluates the rules: files, objects of an operator, or namespaces.",
    ),
    click.option(
        "--lacks",
        type=click.Choice(LACKS),
        multiple=True,
        help="Field of rules that the ruler is too old to know; repeatable.",
    ),
    click.option(
        "--histograms",
        type=click.Choice(("classic", "native")),
        default="classic",
        show_default=True,
        help="How the ruler stores histograms; native needs Prometheus 3 that converts them.",
    ),
    click.option(
        "--namespace", default="lockstep", show_default=True, help="Namespace of the objects."
    ),
    click.option(
        "--label",
        "labels",
        multiple=True,
        metavar="KEY=VALUE",
        help="Label by which an operator selects the objects; repeatable.",
    ),
    click.option(
        "--secret",
        default="lockstep-receivers",
        show_default=True,
        help="Secret in which the operator finds each secret's file by its base name.",
    ),
)


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options to a command, which reads them by ``read_target``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read_target(
    *,
    ruler: str,
    lacks: tuple[str, ...],
    histograms: str,
    namespace: str,
    labels: tuple[str, ...],
    secret: str,
) -> Target:
    """The ruler that the options choose, and the names of its objects."""
    return Target(
        format=ruler,
        lacks=lacks,
        native_histograms=histograms == "native",
        namespace=_name("--namespace", namespace),
        labels=dict(map(_pair, labels)),
        key_store=_name("--secret", secret),
    )


def _pair(text: str) -> tuple[str, str]:
    matched = _PAIR.fullmatch(text)
    if not matched:
        raise click.UsageError(f"--label {text!r}: write KEY=VALUE, such as release=monitoring")
    return matched[1], matched[2]


def _name(flag: str, text: str) -> str:
    if not _NAME.fullmatch(text):
        raise click.UsageError(f"{flag} {text!r}: write small letters, digits and dashes")
    return text
