"""The verdicts of one sample as JSON: what ``/health`` serves and ``lockstep doctor`` prints."""

import json
from typing import Any

from lockstep_agent.exposition.text import Exposition
from lockstep_agent.health.parts import kind_of, verdicts_in
from lockstep_catalogue.labels import VERDICT
from lockstep_catalogue.verdicts import NO_REASON, OK

WORSE = VERDICT.values  # from good to bad


def health_of(latest: Exposition, node: str) -> dict[str, Any]:
    """The node's verdict, and every part with its verdict and reasons.

    Args:
        latest: the newest sample.
        node: name of the machine.
    """
    parts: dict[tuple[str, str], dict[str, Any]] = {}
    whole: dict[str, Any] = {"verdict": OK, "reasons": []}
    for told in verdicts_in(latest.readings):
        kind = kind_of(told.metric)
        fresh: dict[str, Any] = {"kind": kind, "name": told.name, **dict(told.labels)}
        fresh |= {"verdict": OK, "reasons": []}
        part = whole if kind == "node" else parts.setdefault((kind, told.name), fresh)
        part["verdict"] = max(part["verdict"], told.verdict, key=WORSE.index)
        if told.reason != NO_REASON:
            part["reasons"].append(told.reason)
    return {
        "node": node,
        **whole,
        "at_seconds": latest.rendered_seconds,
        "parts": list(parts.values()),
    }


def health_page(latest: Exposition, node: str) -> bytes:
    """The same as bytes."""
    return json.dumps(health_of(latest, node)).encode() + b"\n"
