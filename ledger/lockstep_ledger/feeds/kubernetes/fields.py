"""Reads fields of objects of unknown origin: what is missing or of another type is left out."""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

Document = Mapping[str, Any]
_MAX_DIGITS = 9
_CLAIMED = re.compile(r"gpu|mig|tpu|neuron|gaudi|accelerator", re.IGNORECASE)
_ACCELERATOR = re.compile(
    r"nvidia\.com/(gpu|mig-).*|amd\.com/(gpu|cpx|spx|dpx|qpx).*|gpu\.intel\.com/(i915|xe)"
    r"|habana\.ai/gaudi|google\.com/tpu|aws\.amazon\.com/neuron.*|huawei\.com/Ascend.*"
    r"|[^/]+/gpu"
)
"""Resources that are accelerators, of all vendors."""


def part_of(document: Any, *path: str) -> Document:
    """A part of a document; empty where it is missing or no object."""
    part = document
    for name in path:
        part = part.get(name) if isinstance(part, Mapping) else None
    return part if isinstance(part, Mapping) else {}


def list_of(value: Any) -> list[Document]:
    """The objects of a list; empty where it is none."""
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def text_of(value: Any) -> str:
    """A text; empty where it is none."""
    return value if isinstance(value, str) else ""


def count_of(value: Any, default: int = 0) -> int:
    """A count, which may be a text; the default where it is none."""
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else default


def seconds_of(moment: Any) -> float | None:
    """Seconds since 1970 of a time of the server; None where it is none."""
    try:
        time = datetime.fromisoformat(moment)
    except (TypeError, ValueError):
        return None
    seconds = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    return seconds if seconds >= 0 else None


def count_accelerators(resources: Document) -> int:
    """Accelerators of a container's limits, or of its requests where it has none."""
    amounts = part_of(resources, "limits") or part_of(resources, "requests")
    return sum(count_of(n) for name, n in amounts.items() if _ACCELERATOR.fullmatch(str(name)))


def asks_in_template(spec: Any, depth: int = 12) -> bool:
    """Whether any template of pods inside a spec, of whatever kind, asks for accelerators."""
    if isinstance(spec, list):
        return depth > 0 and any(asks_in_template(each, depth - 1) for each in spec)
    if not isinstance(spec, Mapping) or depth <= 0:
        return False
    return count_accelerators(spec) > 0 or any(
        asks_in_template(each, depth - 1)
        for each in spec.values()
        if isinstance(each, Mapping | list)
    )


def count_claimed(claim: Document) -> int:
    """Accelerators that a resource claim was allocated, or asks for."""
    results = list_of(part_of(claim, "status", "allocation", "devices").get("results"))
    if results:
        return sum(bool(_CLAIMED.search(text_of(each.get("driver")))) for each in results)
    total = 0
    for request in list_of(part_of(claim, "spec", "devices").get("requests")):
        exactly = part_of(request, "exactly") or request
        if _CLAIMED.search(text_of(exactly.get("deviceClassName"))):
            total += count_of(exactly.get("count"), 1)
    return total


def conditions_of(status: Document) -> Iterator[tuple[str, bool, Document]]:
    """Type of each condition, whether it is true, and the condition."""
    for each in list_of(status.get("conditions")):
        yield text_of(each.get("type")), each.get("status") == "True", each
