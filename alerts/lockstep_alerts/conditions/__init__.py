"""The conditions that an entry of slos.yaml can name, collected from the module of each area."""

import re
from collections.abc import Iterator, Mapping
from importlib import import_module

from lockstep_alerts.conditions.condition import Condition

_NEXT_WORD = re.compile(r"(?<!^)(?=[A-Z])")


def _read_kinds(area: str) -> Iterator[tuple[str, type[Condition]]]:
    module = import_module(f"{__name__}.{area}")
    for name, value in vars(module).items():
        is_condition = isinstance(value, type) and issubclass(value, Condition)
        if is_condition and value.__module__ == module.__name__ and not name.startswith("_"):
            yield _NEXT_WORD.sub("_", name).lower(), value


AREAS: Mapping[str, Mapping[str, type[Condition]]] = {
    area: dict(_read_kinds(area))
    for area in ("jobs", "attempts", "nodes", "fabric", "capacity", "telemetry")
}
"""By the area whose rule file they go to."""
CONDITIONS: Mapping[str, type[Condition]] = {
    kind: condition for kinds in AREAS.values() for kind, condition in kinds.items()
}
