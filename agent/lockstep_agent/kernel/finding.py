"""The finding that follows from a message and the pattern that it matches."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from lockstep_catalogue import Metric
from lockstep_catalogue import incidents as metrics
from lockstep_catalogue.incidents import XID_TABLE
from lockstep_records.text.printable import printable

# Xid lines have no function digit, SXid lines have one
ADDRESS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_BUS_LOSS = "79"
# One memory error is reported by several of these: the error, its containment, the remapped row,
# and the cleanup of each process that it ends.
_MEMORY_EVENT = frozenset({"48", "63", "64", "94", "95", "171", "172"})
_CLEANUP = frozenset({"43", "45"})

Match = re.Match[str]


@dataclass(frozen=True, slots=True)
class Finding:
    """The meaning of one message.

    Attributes:
        key: messages with the same key belong to the same incident.
        quiet_seconds: silence after which the next such message is a new incident.
        cause: kind, address and number of an incident that causes this one; while it is ongoing,
            this one is not counted.
        event: numbers of the Xids that report the same event of a GPU: while an incident of any of
            them is ongoing, this one is not counted.
        facts: named parts of the message that are not among the labels.
    """

    metric: Metric
    labels: tuple[str, ...]
    key: tuple[str, ...]
    quiet_seconds: float
    cause: tuple[str, ...] | None = None
    event: frozenset[str] = frozenset()
    facts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A line of the table.

    Args:
        build_finding: builds the finding from this pattern and a match of its expression.
        value: the incident's value in its closed set of label values, where it has one.
        quiet_seconds: see Finding.
        expression: regular expression whose named groups become facts.
        key_groups: groups whose values make two messages one incident.
    """

    build_finding: Callable[["Pattern", Match], Finding]
    value: str
    quiet_seconds: float
    expression: str
    key_groups: tuple[str, ...] = ()


def pci_address(text: str) -> str:
    """An address as /sys writes it: four digits of domain, lower case, with a function."""
    domain, bus, rest = text.lower().split(":")
    device, _, function = rest.partition(".")
    return f"{int(domain, 16):04x}:{bus}:{device}.{function or '0'}"


def _facts(match: Match) -> dict[str, str]:
    return {name: printable(value) for name, value in match.groupdict().items() if value}


def event_of(number: str) -> frozenset[str]:
    """Numbers of the Xids that may report the same event as this one; empty for most numbers."""
    return _MEMORY_EVENT if number in _MEMORY_EVENT | _CLEANUP else frozenset()


def build_xid(pattern: Pattern, match: Match) -> Finding:
    """The finding of an Xid, of a GPU or of one instance of a split GPU."""
    facts = _facts(match)
    # a GPU that fell off the bus is reported in another line too, without the number
    address, number = pci_address(facts.pop("pci")), str(int(facts.pop("xid", _BUS_LOSS)))
    instance_ids = (facts.pop("gi", ""), facts.pop("ci", ""))
    labels = (address, "/".join(part for part in instance_ids if part), number)
    xid = XID_TABLE.get(int(number))
    event = event_of(number)
    is_per_process = xid is not None and xid.of_a_process and not event
    pid = facts.get("pid", "") if is_per_process else ""
    cause = facts.pop("cause", None)
    return Finding(
        metrics.GPU_XID_INCIDENTS,
        labels,
        ("xid", *labels, pid),
        pattern.quiet_seconds,
        cause=("xid", address, cause) if cause else None,
        event=event,
        facts=facts,
    )


def build_sxid(pattern: Pattern, match: Match) -> Finding:
    """The finding of a fault of an NVSwitch."""
    facts = _facts(match)
    fatal = "fatal" if facts.pop("fatal").lower() == "fatal" else "non_fatal"
    labels = (pci_address(facts.pop("pci")), str(int(facts.pop("sxid"))), fatal)
    key = ("sxid", *labels, facts.get("link", ""))
    return Finding(metrics.NVSWITCH_INCIDENTS, labels, key, pattern.quiet_seconds, facts=facts)


def build_nic(pattern: Pattern, match: Match) -> Finding:
    """The finding of a message of a network driver."""
    facts = _facts(match)
    device = facts.get("port") or facts.pop("port2", None) or facts.get("pci") or "unknown"
    key = ("nic", device, pattern.value)
    labels = (device, pattern.value)
    return Finding(metrics.NIC_INCIDENTS, labels, key, pattern.quiet_seconds, facts=facts)


def build_host(pattern: Pattern, match: Match) -> Finding:
    """The finding of a message about the node."""
    facts = _facts(match)
    key = ("host", pattern.value, *(facts.get(name, "") for name in pattern.key_groups))
    labels = (pattern.value,)
    return Finding(metrics.HOST_INCIDENTS, labels, key, pattern.quiet_seconds, facts=facts)
