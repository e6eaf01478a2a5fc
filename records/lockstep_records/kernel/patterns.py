"""The meaning of kernel messages, as one table; the first pattern that matches decides.

A pattern begins where the message begins, with the driver and the device's address. What quotes a
process or its file never is a message of a driver: the kernel prints a name of at
most 15 characters and the process's id first, or the file first and the signal that killed it last.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from lockstep_catalogue import Metric
from lockstep_catalogue import incidents as metrics
from lockstep_catalogue.incidents import NONFATAL, XID_TABLE
from lockstep_records.text.printable import printable

# Xid lines have no function digit, SXid lines have one
ADDRESS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
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


_DRIVERS = "mlx4_core|mlx4_en|mlx5_core|mlx5_ib|ena|efa|bnxt_en|bnxt_re|ice|irdma|idpf|gve"
_PORT = (
    rf"(?:(?:{_DRIVERS}) (?P<pci>{ADDRESS})(?: (?P<port>[a-z][\w@.-]{{1,30}})(?=:))?"
    r"|mlx4_en: (?P<port2>[a-z][\w@.-]{1,30})): ?.{0,200}?"
)
_AER = rf"(?:pcieport {ADDRESS}: )?AER: (?:Multiple )?"
_FROM = rf"error (?:message )?received(?: from|:) (?P<pci>{ADDRESS})"
_BUS = rf"[\w-]{{1,30}} (?P<pci>{ADDRESS}): (?:AER: )?PCIe Bus Error: severity="
_GPU_OF_DRIVER = rf"NVRM: (?:(?P<index>GPU\d{{1,2}}) |GPU (?P<pci>{ADDRESS}): )?"
_OTHER_GPU = rf"(?:amdgpu|xe|i915|habanalabs) (?P<pci>{ADDRESS}): "
Keys = tuple[tuple[str, ...], ...]
# A device that is lost is an error of its link, and both ends of a link report one error.
_LINK_KEYS = {
    severity: (("xid", "{pci}"), ("nic", "{pci}"), *(("host", each) for each in worse))
    for severity, worse in {
        "uncorrected": ("pcie_uncorrected",),
        "nonfatal": ("pcie_nonfatal", "pcie_uncorrected"),
        "corrected": ("pcie_corrected", "pcie_nonfatal", "pcie_uncorrected"),
    }.items()
}


def _host(
    incident: str,
    quiet_seconds: float,
    *expressions: str,
    key: tuple[str, ...] = (),
    echo_of: Keys = (),
) -> Iterator[Pattern]:
    """Lines of an incident of the node; ``key`` names the groups that make two of them one."""
    for text in expressions:
        yield Pattern(build_host, incident, quiet_seconds, text, key, echo_of)


def _nic(
    incident: str, quiet_seconds: float, *expressions: str, echo_of: Keys = ()
) -> Iterator[Pattern]:
    """Lines of an incident of a network adapter."""
    for text in expressions:
        yield Pattern(build_nic, incident, quiet_seconds, text, (), echo_of)


def _gpu(name: str, *expressions: str, echo_of: Keys = ()) -> Iterator[Pattern]:
    """Lines of a failure of a GPU to which the driver gives no number."""
    for text in expressions:
        yield Pattern(build_xid, name, 300, text, (), echo_of)


_KERNEL = (
    # a recovery action that is wanted no more ends a fault
    Pattern(
        build_xid,
        "",
        300,
        # the instance of a split GPU stands inside the brackets, where other agents miss it
        rf"NVRM: Xid \((?:PCI:)?(?P<pci>{ADDRESS})(?: GPU-I:(?P<gi>\d{{1,3}}))?"
        r"(?: GPU-CI:(?P<ci>\d{1,3}))?\): (?!154\b.{0,200}?to 0x0 \(None\))(?P<xid>\d{1,4})\b"
        r"(?:, pid='?(?P<pid>\d{1,10}|<unknown>)'?)?(?:, name=(?P<process>[^,]{1,64}))?"
        r"(?:.{0,80}?\b(?P<nonfatal>[Nn]on-?[Ff]atal)\b)?",
    ),
    *_gpu(
        "fallen_off",
        rf"NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?(?P<pci>{ADDRESS})\b"
        r".{0,200}?fallen off the bus",
        rf"amdgpu (?P<pci>{ADDRESS}): .{{0,80}}?lost from bus",
        echo_of=(("xid", "{pci}", "", "79"),),
    ),
    *_gpu(
        "rm_init_failed",
        rf"NVRM: GPU (?P<pci>{ADDRESS}): (?:rm_init_adapter|RmInitAdapter) failed",
        rf"habanalabs (?P<pci>{ADDRESS}): Failed to initialize (?P<device>hl\d{{1,3}})",
    ),
    *_gpu(
        "firmware",
        _GPU_OF_DRIVER + r".{0,80}?(?:GSP RM heartbeat timed out|[Hh]eartbeat timed out)",
        echo_of=(("xid", "", "", "119"), ("xid", "", "", "120")),
    ),
    *_gpu(
        "needs_reset",
        _GPU_OF_DRIVER
        + r".{0,600}?(?:NV_ERR_RESET_REQUIRED|[Rr]eset required|status=0x0{0,6}62\b)",
        echo_of=(("xid",),),
    ),
    *_gpu(
        "needs_reset",
        _OTHER_GPU + r".{0,120}?(?:\bwedged|[Rr]eset(?:\(\d{1,3}\))? failed|Recovery [Ff]ailed"
        r"|[Ff]ailed to reset)",
    ),
    *_gpu(
        "engine_reset",
        _OTHER_GPU
        + r".{0,80}?(?:Engine reset: |GPU HANG|GPU [Rr]eset begin|[Rr]esetting \w{1,30} for)",
        echo_of=(("xid", "{pci}"),),
    ),
    *_gpu(
        "memory_corrected",
        rf"amdgpu (?P<pci>{ADDRESS}): .{{0,80}}?\b[1-9]\d{{0,9}} (?:new )?correctable "
        r"hardware errors detected",
    ),
    *_gpu(
        "memory_error",
        rf"amdgpu (?P<pci>{ADDRESS}): .{{0,80}}?[1-9]\d{{0,9}} (?:new )?uncorrectable "
        r"hardware errors detected",
    ),
    # an SXid is followed by lines of data with the same number, which must not count
    Pattern(
        build_sxid,
        "",
        60,
        rf"nvidia-nvswitch(?P<switch>\d{{1,3}}): SXid \(PCI:(?P<pci>{ADDRESS})\): "
        r"(?P<sxid>\d{1,6}), (?P<fatal>Fatal|Non-fatal)(?:, Link (?P<link>\d{1,3}))?",
    ),
    *_host(
        "nic_lost",
        300,
        _PORT + r"(?:PCI slot is unavailable|health recovery flow aborted|device is down"
        r"|[Ff]irmware (?:reset|recovery) (?:failed|aborted))",
        key=("pci",),
    ),
    *_nic("temperature", 300, _PORT + r"[Hh]igh [Tt]emperature"),
    *_nic("cable", 5, _PORT + r"Cable (?:unplugged|error)"),
    *_nic(
        "link_down",
        1,
        _PORT + r"Link (?:is )?[Dd]own",
        echo_of=tuple(("nic", "{pci}", each) for each in ("cable", "temperature", "health")),
    ),
    *_nic(
        "health",
        300,
        _PORT + r"(?:health (?:compromised|recovery)|assert_var|[Ff]irmware (?:internal|fatal)"
        r"|[Ff]irmware (?:is )?not responding|firmware error|Fatal error|[Ff]irmware recovery"
        r"|fatal reset)",
        echo_of=(("host", "nic_lost", "{pci}"),),
    ),
    *_nic(
        "queue_error",
        60,
        _PORT + r"(?:[Ee]rror cqe|dump_cqe|Malicious Driver Detection|CQ error|QP error)",
        r"infiniband (?P<port>[\w-]{1,30}): "
        r"(?:dump_cqe|\w{1,40}:\d{1,6}:\(pid \d{1,10}\): .{0,100}?CQ error)",
    ),
    *_nic(
        "command_failed",
        60,
        # what the adapter refuses as unsupported does not count
        _PORT + r"(?:(?:cmd|hwrm).{0,200}?(?:failed|timeout)(?!, status bad operation)"
        r"|wait_func.{0,200}?timeout|[Aa]dmin .{0,200}?timeout)",
    ),
    *_nic(
        "timeout",
        60,
        _PORT + r"(?:TX timeout|tx_timeout|NETDEV WATCHDOG|[Kk]eep alive watchdog timeout"
        r"|[Mm]issing Tx comp)",
    ),
    *_nic(
        "timeout",
        60,
        r"NETDEV WATCHDOG: (?P<port>[\w@.-]{1,30}) \([\w-]{1,30}\):? .{0,60}?timed out",
        echo_of=(("nic", "", "timeout", "{port}"),),
    ),
    *_host(
        "soft_lockup",
        60,
        r"(?:(?:NMI )?watchdog: )?BUG: soft lockup - CPU#(?P<cpu>\d{1,5})"
        r" stuck for (?P<seconds>\d{1,8})s!"
        r"(?: \[(?P<process>.{1,64}):(?P<pid>\d{1,10})\])?",
        key=("cpu",),
    ),
    *_host(
        "hard_lockup",
        60,
        r"(?:(?:NMI )?watchdog: )?(?:CPU\d{1,5}: )?"
        r"Watchdog detected hard LOCKUP on cpu (?P<cpu>\d{1,5})",
        key=("cpu",),
    ),
    *_host(
        "hung_task",
        300,
        r"INFO: task (?P<process>.{1,64}):(?P<pid>\d{1,10}) blocked"
        r" .{0,60}?for more than (?P<seconds>\d{1,8}) seconds",
        key=("pid",),
    ),
    *_host(
        "rcu_stall",
        60,
        r"(?:rcu: )?INFO: rcu\w{0,30}+ (?:self-detected stall|detected (?:expedited )?stalls)",
    ),
    # newer kernels write "oom-kill:" and "Out of memory", older ones only the second; the pid as
    # key makes one incident of both
    *_host(
        "oom_cgroup",
        10,
        r"oom-kill:constraint=CONSTRAINT_MEMCG,.*?,oom_memcg=(?P<cgroup>[^,]{1,400}),"
        r".*,task=(?P<process>.{1,64}),pid=(?P<pid>\d{1,10}),uid=(?P<uid>\d{1,10})",
        r"Memory cgroup out of memory: Kill(?:ed)? process (?P<pid>\d{1,10})"
        r"(?:,? \((?P<process>.{1,64})\))?(?:.{0,300}\bUID:(?P<uid>\d{1,10}))?",
        key=("pid",),
    ),
    *_host(
        "oom_host",
        10,
        r"oom-kill:constraint=.*,task=(?P<process>.{1,64}),pid=(?P<pid>\d{1,10}),uid=(?P<uid>\d{1,10})",
        r"Out of memory(?: \([\w ]{1,60}\))?: Kill(?:ed)? process (?P<pid>\d{1,10})"
        r"(?:,? \((?P<process>.{1,64})\))?(?:.{0,300}\bUID:(?P<uid>\d{1,10}))?",
        key=("pid",),
    ),
    *_host(
        "memory_corrected",
        300,
        r"EDAC (?P<controller>MC\d{1,4}): \d{1,9} CE (?:.{1,100}? )?on (?P<dimm>\S{1,100})",
        r"APEI corrected memory error(?: on (?P<dimm>.{1,100}))?",
        key=("controller", "dimm"),
    ),
    *_host(
        "memory_uncorrected",
        60,
        r"EDAC (?P<controller>MC\d{1,4}): \d{1,9} UE (?:.{1,100}? )?on (?P<dimm>\S{1,100})",
        r"APEI (?:recoverable|fatal) memory error(?: on (?P<dimm>.{1,100}))?",
        r"Memory failure: (?P<page>0x[0-9a-f]{1,16}): ",
    ),
    # "Machine check events logged" comes with corrected errors too; the status has a bit for others
    *_host(
        "machine_check",
        60,
        r"mce: \[Hardware Error\]: CPU (?P<cpu>\d{1,5}): Machine Check(?: Exception)?: \d{1,3}"
        r" Bank (?P<bank>\d{1,3}): [2367abef][0-9a-f]{15}",
        r"(?:mce: )?\[Hardware Error\]: (?:Uncorrected error|Machine check: |CPU:\d{1,5} .{0,40}"
        r"_STATUS\[[^\]]{0,20}\|UE\|)",
        r"Kernel panic - not syncing: Fatal (?:local )?machine check",
        r"APEI fatal (?!memory)\w+",
        echo_of=(("host", "memory_uncorrected"),),
    ),
    *_host(
        "pcie_corrected",
        5,
        _AER + r"Correct(?:ed|able) " + _FROM,
        r"APEI corrected PCIe",
        key=("pci",),
        echo_of=(("host", "pcie_corrected", "unknown"),),
    ),
    *_host("pcie_corrected", 5, _BUS + r"Correct", key=("pci",), echo_of=_LINK_KEYS["corrected"]),
    *_host(
        "pcie_nonfatal",
        5,
        _AER + r"Uncorrect(?:ed|able) \(Non-?[Ff]atal\) " + _FROM,
        _BUS + r"Uncorrect(?:ed|able) \(Non-?[Ff]atal",
        key=("pci",),
        echo_of=_LINK_KEYS["nonfatal"],
    ),
    *_host(
        "pcie_uncorrected",
        5,
        _AER + r"Uncorrect(?:ed|able) \(.{1,20}\) " + _FROM,
        _BUS + r"Uncorrect",
        r"APEI fatal PCIe",
        key=("pci",),
        echo_of=_LINK_KEYS["uncorrected"],
    ),
    *_host(
        "file_server_silent",
        300,
        r"nfs: server (?P<server>\S{1,255}) not responding",
        r"Lustre: (?:\S{1,200}: )?Connection to (?P<server>\S{1,255}) .{0,100}?was lost",
        key=("server",),
    ),
)
_FABRIC_MANAGER = _host(
    "fabric_manager",
    60,
    r"\[(?P<level>ERROR|FATAL|CRITICAL)\] (?:\[tid \d+\] )?(?P<message>[^\d]{0,60})",
    key=("message",),
)
_QUOTE = re.compile(
    r"(?:traps: )?.{0,15}(?:[\[(]\d{1,10}[\])]:? |: page allocation failure: | invoked oom-kill)"
    r"|.*: potentially unexpected fatal signal \d{1,3}\.?$"
)
TABLES = {
    log: tuple((pattern, re.compile(pattern.expression)) for pattern in patterns)
    for log, patterns in (("kernel", _KERNEL), ("fabric_manager", _FABRIC_MANAGER))
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
