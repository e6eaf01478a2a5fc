"""The meaning of kernel messages, as one table; the first pattern that matches decides.

A pattern begins where the message begins, with the driver and the device's address. What quotes a
process or its file never is a message of a driver: the kernel prints a name of at
most 15 characters and the process's id first, or the file first and the signal that killed it last.
"""

import re
from collections.abc import Iterator

from lockstep_records.kernel import finding

_DRIVERS = "mlx4_core|mlx4_en|mlx5_core|mlx5_ib|ena|efa|bnxt_en|bnxt_re|ice|irdma|idpf|gve"
_PORT = (
    rf"(?:(?:{_DRIVERS}) (?P<pci>{finding.ADDRESS})(?: (?P<port>[a-z][\w@.-]{{1,30}})(?=:))?"
    r"|mlx4_en: (?P<port2>[a-z][\w@.-]{1,30})): ?.{0,200}?"
)
_AER = rf"(?:pcieport {finding.ADDRESS}: )?AER: (?:Multiple )?"
_FROM = rf"error (?:message )?received(?: from|:) (?P<pci>{finding.ADDRESS})"
_BUS = rf"[\w-]{{1,30}} (?P<pci>{finding.ADDRESS}): (?:AER: )?PCIe Bus Error: severity="
_GPU_OF_DRIVER = rf"NVRM: (?:(?P<index>GPU\d{{1,2}}) |GPU (?P<pci>{finding.ADDRESS}): )?"
_OTHER_GPU = rf"(?:amdgpu|xe|i915|habanalabs) (?P<pci>{finding.ADDRESS}): "
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
) -> Iterator[finding.Pattern]:
    """Lines of an incident of the node; ``key`` names the groups that make two of them one."""
    for text in expressions:
        yield finding.Pattern(finding.build_host, incident, quiet_seconds, text, key, echo_of)


def _nic(
    incident: str, quiet_seconds: float, *expressions: str, echo_of: Keys = ()
) -> Iterator[finding.Pattern]:
    """Lines of an incident of a network adapter."""
    for text in expressions:
        yield finding.Pattern(finding.build_nic, incident, quiet_seconds, text, (), echo_of)


def _gpu(name: str, *expressions: str, echo_of: Keys = ()) -> Iterator[finding.Pattern]:
    """Lines of a failure of a GPU to which the driver gives no number."""
    for text in expressions:
        yield finding.Pattern(finding.build_xid, name, 300, text, (), echo_of)


_KERNEL = (
    # a recovery action that is wanted no more ends a fault
    finding.Pattern(
        finding.build_xid,
        "",
        300,
        # the instance of a split GPU stands inside the brackets, where other agents miss it
        rf"NVRM: Xid \((?:PCI:)?(?P<pci>{finding.ADDRESS})(?: GPU-I:(?P<gi>\d{{1,3}}))?"
        r"(?: GPU-CI:(?P<ci>\d{1,3}))?\): (?!154\b.{0,200}?to 0x0 \(None\))(?P<xid>\d{1,4})\b"
        r"(?:, pid='?(?P<pid>\d{1,10}|<unknown>)'?)?(?:, name=(?P<process>[^,]{1,64}))?"
        r"(?:.{0,80}?\b(?P<nonfatal>[Nn]on-?[Ff]atal)\b)?",
    ),
    *_gpu(
        "fallen_off",
        rf"NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?(?P<pci>{finding.ADDRESS})\b"
        r".{0,200}?fallen off the bus",
        rf"amdgpu (?P<pci>{finding.ADDRESS}): .{{0,80}}?lost from bus",
        echo_of=(("xid", "{pci}", "", "79"),),
    ),
    *_gpu(
        "rm_init_failed",
        rf"NVRM: GPU (?P<pci>{finding.ADDRESS}): (?:rm_init_adapter|RmInitAdapter) failed",
        rf"habanalabs (?P<pci>{finding.ADDRESS}): Failed to initialize (?P<device>hl\d{{1,3}})",
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
        rf"amdgpu (?P<pci>{finding.ADDRESS}): .{{0,80}}?\b[1-9]\d{{0,9}} (?:new )?correctable "
        r"hardware errors detected",
    ),
    *_gpu(
        "memory_error",
        rf"amdgpu (?P<pci>{finding.ADDRESS}): .{{0,80}}?[1-9]\d{{0,9}} (?:new )?uncorrectable "
        r"hardware errors detected",
    ),
    # an SXid is followed by lines of data with the same number, which must not count
    finding.Pattern(
        finding.build_sxid,
        "",
        60,
        rf"nvidia-nvswitch(?P<switch>\d{{1,3}}): SXid \(PCI:(?P<pci>{finding.ADDRESS})\): "
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
        echo_of=(
            ("nic", "{pci}", "cable"),
            ("nic", "{pci}", "temperature"),
            ("nic", "{pci}", "health"),
        ),
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


def match_message(log: str, text: str) -> finding.Finding | None:
    """The finding of a message without its time; None for a message of no concern."""
    if _QUOTE.match(text):
        return None
    for pattern, expression in TABLES[log]:
        if match := expression.match(text):
            return pattern.build_finding(pattern, match)
    return None
