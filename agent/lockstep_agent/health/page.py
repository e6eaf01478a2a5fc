"""The verdicts of one sample as JSON: what ``/health`` serves and ``lockstep doctor`` prints."""

from typing import Any

from lockstep_agent.exposition.text import Exposition
from lockstep_agent.health.parts import kind_of, verdicts_in
from lockstep_catalogue.incidents import NO_REASON, OK
from lockstep_catalogue.labels import VERDICT

FROM_GOOD_TO_BAD = VERDICT.values


def health_of(exposition: Exposition, node: str) -> dict[str, Any]:
    """The node's verdict, and each part with its verdict and reasons."""
    parts: dict[tuple[str, str], dict[str, Any]] = {}
    node_health: dict[str, Any] = {"verdict": OK, "reasons": []}
    for verdict in verdicts_in(exposition.readings):
        kind = kind_of(verdict.metric)
        new_part: dict[str, Any] = {"kind": kind, "name": verdict.name, **dict(verdict.labels)}
        new_part |= {"verdict": OK, "reasons": []}
        is_node = kind == "node"
        part = node_health if is_node else parts.setdefault((kind, verdict.name), new_part)
        part["verdict"] = max(part["verdict"], verdict.verdict, key=FROM_GOOD_TO_BAD.index)
        if verdict.reason != NO_REASON:
            part["reasons"].append(verdict.reason)
    return {
        "node": node,
        **node_health,
        "at_seconds": exposition.rendered_seconds,
        "parts": list(parts.values()),
    }
