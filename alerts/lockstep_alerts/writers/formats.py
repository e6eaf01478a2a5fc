"""Files for each kind of ruler."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import yaml

from lockstep_alerts.output.write import ROUTES_FILE, to_yaml
from lockstep_alerts.writers.alertmanager_object import FILE_NAME, alertmanager_object
from lockstep_alerts.writers.operator import PROMETHEUS_RULE, VM_RULE, rule_objects
from lockstep_alerts.writers.rule_files import (
    RULES_SUFFIX,
    RuleFile,
    drop_words,
    rule_files,
    with_native_histograms,
)

_MIMIR_SUFFIX = ".mimir.yaml"
MAX_RULES_PER_GROUP = 20
"""Mimir's default limit, ``ruler_max_rules_per_rule_group``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A ruler, and how its objects are named.

    Attributes:
        format: one of ``FORMATS``.
        lacks: words of a rule that the ruler refuses.
        native_histograms: whether it stores histograms as native ones.
        namespace: of objects in Kubernetes.
        labels: by which an operator selects the objects.
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
    """The files of a target by name.

    Raises:
        SpecError: an object cannot hold what it must.
    """
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
