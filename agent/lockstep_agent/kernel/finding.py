"""From a message that fits a pattern to what it tells."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from lockstep_catalogue import Metric
from lockstep_catalogue import events as metrics
from lockstep_catalogue.xids import XID_BY_NUMBER

ADDRESS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_BUS_LOSS = "79"

Match = re.Match[str]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one message tells.

    Attributes:
        labels: of the metric that counts it.
        key: messages with the same key belong to the same incident.
        quiet_seconds: how long no such message comes before the next one is a new incident.
        cause: key of an incident that this one follows; while that one lasts it counts for nothing.
        facts: what the message names beside the labels.
    """

    metric: Metric
    labels: tuple[str, ...]
    key: tuple[str, ...]
    quiet_seconds: float
    cause: tuple[str, ...] | None = None
    facts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A line of the table.

    Args:
        value: the incident's value in its closed set of labels, where it has one.
        quiet_seconds: see Finding.
        expression: named groups are told as facts.
        same: groups whose values make two messages one incident.
    """

    understand: Callable[["Pattern", Match], Finding]
    value: str
    quiet_seconds: float
    expression: str
    same: tuple[str, ...] = ()


def pci_address(told: str) -> str:
    """An address as /sys writes it: four digits of domain, lower case, with a function."""
    domain, bus, rest = told.lower().split(":")
    device, _, function = rest.partition(".")
    return f"{int(domain, 16):04x}:{bus}:{device}.{function or '0'}"


def _facts(match: Match) -> dict[str, str]:
    told = {name: value for name, value in match.groupdict().items() if value}
    return {name: "".join(c for c in value if c.isprintable()) for name, value in told.items()}


def xid(pattern: Pattern, match: Match) -> Finding:
    """A fault of a GPU, of the whole or of one instance of a split one."""
    told = _facts(match)
    address, number = pci_address(told.pop("pci")), str(int(told.pop("xid", _BUS_LOSS)))
    split = (told.pop("gi", ""), told.pop("ci", ""))
    labels = (address, "/".join(part for part in split if part), number)
    known = XID_BY_NUMBER.get(int(number))
    own = told.get("pid", "") if known and known.of_a_process else ""
    cause = told.pop("cause", None)
    return Finding(
        metrics.GPU_XID_INCIDENTS,
        labels,
        ("xid", *labels, own),
        pattern.quiet_seconds,
        cause=("xid", address, cause) if cause else None,
        facts=told,
    )


def sxid(pattern: Pattern, match: Match) -> Finding:
    """A fault of an NVSwitch."""
    told = _facts(match)
    fatal = "fatal" if told.pop("fatal").lower() == "fatal" else "non_fatal"
    labels = (pci_address(told.pop("pci")), str(int(told.pop("sxid"))), fatal)
    key = ("sxid", *labels, told.get("link", ""))
    return Finding(metrics.NVSWITCH_INCIDENTS, labels, key, pattern.quiet_seconds, facts=told)


def nic(pattern: Pattern, match: Match) -> Finding:
    """A complaint of the driver of a port."""
    told = _facts(match)
    device = told.get("port") or told.get("pci") or "unknown"
    key = ("nic", device, pattern.value)
    labels = (device, pattern.value)
    return Finding(metrics.NIC_INCIDENTS, labels, key, pattern.quiet_seconds, facts=told)


def host(pattern: Pattern, match: Match) -> Finding:
    """A complaint about the node."""
    told = _facts(match)
    key = ("host", pattern.value, *(told.get(name, "") for name in pattern.same))
    return Finding(metrics.HOST_INCIDENTS, (pattern.value,), key, pattern.quiet_seconds, facts=told)
