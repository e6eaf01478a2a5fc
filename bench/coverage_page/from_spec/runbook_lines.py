"""The section *Inhibited by* of every runbook, from the graph of inhibition."""

import re
from pathlib import Path

from lockstep_alerts.routing.inhibition import inhibitors
from lockstep_alerts.shipped import runbooks_path
from lockstep_alerts.spec import Spec
from lockstep_alerts.symptom import Symptom

_SECTION = re.compile(r"(^## Inhibited by\n\n).*?(\n\n## )", re.DOTALL | re.MULTILINE)


def with_inhibitors(text: str, symptom: Symptom) -> str:
    """The runbook with the alerts that keep its own quiet, one line each."""
    lines = [f"- {line}." for line in inhibitors(symptom)] or ["Nothing."]
    return _SECTION.sub(lambda found: found[1] + "\n".join(lines) + found[2], text)


def render(spec: Spec) -> dict[Path, str]:
    """The text of every runbook by its path."""
    found = {}
    for symptom in spec.alerts:
        path = runbooks_path() / f"{symptom.alert}.md"
        found[path] = with_inhibitors(path.read_text(encoding="utf-8"), symptom)
    return found
