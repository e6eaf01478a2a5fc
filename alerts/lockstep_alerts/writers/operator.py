"""Objects of the Prometheus operator and of VictoriaMetrics' operator: rules in a cluster."""

from collections.abc import Iterator

from lockstep_alerts.output.write import to_yaml
from lockstep_alerts.reading.entry import SpecError
from lockstep_alerts.writers.rule_files import Group, RuleFile

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
    """Text of the objects by the name of their file; each stays under the operator's limit.

    Raises:
        SpecError: one group alone is larger than the limit.
    """
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
