"""The meaning of kernel messages, by the table patterns.toml; the first that matches decides."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep_catalogue import Metric
from lockstep_catalogue import incidents as metrics
from lockstep_catalogue.incidents import NONFATAL, XID_TABLE
from lockstep_records.kernel.lines import with_parts
from lockstep_records.text.documents import read_toml
from lockstep_records.text.printable import printable

# One memory error is reported by several of these: the error, its containment, the remapped row.
_MEMORY_EVENT = frozenset({"48", "63", "64", "94", "95", "171", "172"})
# Of whatever ended a program or asks for a reset these follow.
_FOLLOWING = frozenset({"43", "45", "154"})

Match = re.Match[str]


@dataclass(frozen=True, slots=True)
class Finding:
    """The meaning of one message.

    Attributes:
        key: messages with the same key belong to the same incident.
        quiet_seconds: silence after which the next such message is a new incident.
        echo_of: begins of the keys of incidents, an empty part being any: while one of them is
            ongoing, this one is not counted. Of the messages of one reading it is judged last.
        event: numbers of the Xids that report the same event of a GPU, or ``*`` for any.
        facts: named parts of the message that are not among the labels.
    """

    metric: Metric
    labels: tuple[str, ...]
    key: tuple[str, ...]
    quiet_seconds: float
    echo_of: tuple[tuple[str, ...], ...] = ()
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
        echo_of: see Finding; a part in braces is the group of that name.
    """

    build_finding: Callable[["Pattern", Match], Finding]
    value: str
    quiet_seconds: float
    expression: str
    key_groups: tuple[str, ...] = ()
    echo_of: tuple[tuple[str, ...], ...] = ()


def pci_address(text: str) -> str:
    """An address as /sys writes it: four digits of domain, lower case, with a function."""
    domain, bus, rest = text.lower().split(":")
    device, _, function = rest.partition(".")
    return f"{int(domain, 16):04x}:{bus}:{device}.{function or '0'}"


def _facts(match: Match) -> dict[str, str]:
    found = {name: printable(value) for name, value in match.groupdict().items() if value}
    return {**found, "pci": pci_address(found["pci"])} if "pci" in found else found


def _echoes(pattern: Pattern, facts: dict[str, str]) -> tuple[tuple[str, ...], ...]:
    return tuple(
        tuple(facts.get(part[1:-1], "unknown") if part.startswith("{") else part for part in key)
        for key in pattern.echo_of
    )


def event_of(number: str) -> frozenset[str]:
    """Numbers of the Xids that may report the same event as this one; empty for most numbers."""
    if number in _FOLLOWING:
        return frozenset({"*"})
    return _MEMORY_EVENT if number in _MEMORY_EVENT else frozenset()


def is_same_event(number: str, event: frozenset[str]) -> bool:
    """Whether an Xid is among those of an event."""
    return number in event or ("*" in event and number not in _FOLLOWING)


def build_xid(pattern: Pattern, match: Match) -> Finding:
    """The finding of an Xid, of a GPU or of one instance of a split GPU, or of a failure by name.

    What the message calls nonfatal counts as nonfatal, whatever its number is elsewhere.
    """
    facts = _facts(match)
    address = facts.pop("pci", None) or facts.pop("index", "unknown")
    number = facts.pop("xid", pattern.value)
    number = str(int(number)) if number.isdecimal() else number
    number += NONFATAL if facts.pop("nonfatal", "") else ""
    instance_ids = (facts.pop("gi", ""), facts.pop("ci", ""))
    labels = (address, "/".join(part for part in instance_ids if part), number)
    xid = XID_TABLE.get(number)
    event = event_of(number)
    is_per_process = xid is not None and xid.of_a_process and not event
    pid = facts.get("pid", "") if is_per_process else ""
    key = ("xid", *labels, pid)
    echo_of = _echoes(pattern, {"pci": address})
    return Finding(
        metrics.GPU_XID_INCIDENTS, labels, key, pattern.quiet_seconds, echo_of, event, facts
    )


def build_sxid(pattern: Pattern, match: Match) -> Finding:
    """The finding of a fault of an NVSwitch."""
    facts = _facts(match)
    fatal = "fatal" if facts.pop("fatal").lower() == "fatal" else "non_fatal"
    labels = (facts.pop("pci"), str(int(facts.pop("sxid"))), fatal)
    key = ("sxid", *labels, facts.get("link", ""))
    return Finding(metrics.NVSWITCH_INCIDENTS, labels, key, pattern.quiet_seconds, facts=facts)


def build_nic(pattern: Pattern, match: Match) -> Finding:
    """The finding of a message of a network driver."""
    facts = _facts(match)
    device = facts.get("port") or facts.pop("port2", None) or facts.get("pci") or "unknown"
    key = ("nic", facts.get("pci", ""), pattern.value, device)
    labels, echo_of = (device, pattern.value), _echoes(pattern, facts)
    return Finding(metrics.NIC_INCIDENTS, labels, key, pattern.quiet_seconds, echo_of, facts=facts)


def build_host(pattern: Pattern, match: Match) -> Finding:
    """The finding of a message about the node."""
    facts = _facts(match)
    key = ("host", pattern.value, *(facts.get(name, "") for name in pattern.key_groups))
    labels, echo_of = (pattern.value,), _echoes(pattern, facts)
    return Finding(metrics.HOST_INCIDENTS, labels, key, pattern.quiet_seconds, echo_of, facts=facts)


_BUILD = {"xid": build_xid, "sxid": build_sxid, "nic": build_nic, "host": build_host}


def _read(entry: dict[str, Any], parts: dict[str, str]) -> Iterator[Pattern]:
    """The patterns of an entry of the table, a line for each of its expressions."""
    for text in entry["expressions"]:
        yield Pattern(
            _BUILD[entry["of"]],
            entry.get("value", ""),
            entry["quiet_seconds"],
            with_parts(text, parts),
            tuple(entry.get("key", ())),
            tuple(map(tuple, entry.get("echo_of", ()))),
        )


_QUOTE = re.compile(
    r"(?:traps: )?.{0,15}(?:[\[(]\d{1,10}[\])]:? |: page allocation failure: | invoked oom-kill)"
    r"|.*: potentially unexpected fatal signal \d{1,3}\.?$"
)
_TABLE = read_toml(Path(__file__).with_suffix(".toml"))
_PARTS = _TABLE.pop("parts")
TABLES = {
    log: tuple(
        (pattern, re.compile(pattern.expression))
        for entry in entries
        for pattern in _read(entry, _PARTS)
    )
    for log, entries in _TABLE.items()
}


class FirmwareRecord:
    """What the firmware tells of an error in several lines of one number, as one message."""

    def __init__(self) -> None:
        self._parts: dict[str, str] = {}

    def feed(self, text: str) -> str:
        """The message, or the record of which it is the line that names what is hit."""
        match = _FIRMWARE_LINE.match(text)
        if match is None:
            return text
        number, name, value = match.groups()
        if number != self._parts.get("number"):
            self._parts = {"number": number}
        self._parts[name] = value
        if name != "section_type" or "event severity" not in self._parts:
            return text
        unit = self._parts.get("fru_text", "")
        return f"APEI {self._parts['event severity']} {value}" + (f" on {unit}" if unit else "")


_FIRMWARE_LINE = re.compile(
    r"(\{\d{1,10}\})\[Hardware Error\]: +(event severity|fru_text|section_type): (.{1,200})"
)


def match_message(log: str, text: str) -> Finding | None:
    """The finding of a message without its time; None for a message of no concern."""
    if _QUOTE.match(text):
        return None
    for pattern, expression in TABLES[log]:
        if match := expression.match(text):
            return pattern.build_finding(pattern, match)
    return None
