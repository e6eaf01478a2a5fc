"""Namespaces of Mimir's ruler, one file each, as ``mimirtool rules load`` takes them."""

from lockstep_alerts.output.write import to_yaml
from lockstep_alerts.writers.rule_files import RuleFile

MIMIR_SUFFIX = ".mimir.yaml"
MAX_RULES_PER_GROUP = 20
"""Mimir's default limit, ``ruler_max_rules_per_rule_group``."""


def namespaces(files: list[RuleFile]) -> dict[str, str]:
    """Text of each namespace by the name of its file."""
    return {
        f"{file.stem}{MIMIR_SUFFIX}": to_yaml({"namespace": file.stem, "groups": file.groups})
        for file in files
    }


def too_long(files: list[RuleFile]) -> list[str]:
    """Groups beyond the limit: their rules read one another in order and cannot be parted."""
    return [
        group["name"]
        for file in files
        for group in file.groups
        if len(group["rules"]) > MAX_RULES_PER_GROUP
    ]
