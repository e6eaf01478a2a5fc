"""Namespaces of Mimir's ruler, one file each, as ``mimirtool rules load`` takes them."""

from collections.abc import Iterator

from lockstep_alerts.output.write import to_yaml
from lockstep_alerts.writers.rule_files import Group, RuleFile

MIMIR_SUFFIX = ".mimir.yaml"
MAX_RULES_PER_GROUP = 20
"""Mimir's default limit, ``ruler_max_rules_per_rule_group``."""


def namespaces(files: list[RuleFile]) -> dict[str, str]:
    """Text of each namespace by the name of its file; groups of alerts keep to Mimir's limit."""
    return {
        f"{file.stem}{MIMIR_SUFFIX}": to_yaml(
            {
                "namespace": file.stem,
                "groups": [part for each in file.groups for part in _parts(each)],
            }
        )
        for file in files
    }


def too_long(files: list[RuleFile]) -> list[str]:
    """Groups beyond the limit whose rules read one another in order: they cannot be parted."""
    return [
        group["name"]
        for file in files
        for group in file.groups
        if _records(group) and len(group["rules"]) > MAX_RULES_PER_GROUP
    ]


def _records(group: Group) -> bool:
    return any("record" in rule for rule in group["rules"])


def _parts(group: Group) -> Iterator[Group]:
    rules = group["rules"]
    if _records(group) or len(rules) <= MAX_RULES_PER_GROUP:
        yield group
        return
    for begin in range(0, len(rules), MAX_RULES_PER_GROUP):
        number = begin // MAX_RULES_PER_GROUP + 1
        part = rules[begin : begin + MAX_RULES_PER_GROUP]
        yield {**group, "name": f"{group['name']}-{number}", "rules": part}
