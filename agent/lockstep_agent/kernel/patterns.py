"""The meaning of kernel messages, as one table; the first pattern that matches decides.

A pattern begins where the message begins, with the driver and the device's address. A process
chooses its own name, which the kernel prints at the begin of some messages, but of 15 characters:
too few for any of these.
"""

import re
from collections.abc import Iterator

from lockstep_agent.kernel import finding

_DRIVERS = "mlx4_core|mlx4_en|mlx5_core|mlx5_ib|ena|efa|bnxt_en|bnxt_re|ice|irdma|idpf|gve"
_PORT = (
    rf"(?:(?:{_DRIVERS}) (?P<pci>{finding.ADDRESS})(?: (?P<port>[a-z][\w@.-]{{1,30}})(?=:))?"
    r"|mlx4_en: (?P<port2>[a-z][\w@.-]{1,30})): ?.{0,200}?"
)
_AER = rf"(?:pcieport {finding.ADDRESS}: )?AER: (?:Multiple )?"


def _host(
    incident: str, quiet_seconds: float, *expressions: str, key: tuple[str, ...] = ()
) -> Iterator[finding.Pattern]:
    """Lines of an incident of the node; ``key`` names the groups that make two of them one."""
    for expression in expressions:
        yield finding.Pattern(finding.build_host, incident, quiet_seconds, expression, key)


def _nic(incident: str, quiet_seconds: float, *expressions: str) -> Iterator[finding.Pattern]:
    """Lines of an incident of a network adapter."""
    for expression in expressions:
        yield finding.Pattern(finding.build_nic, incident, quiet_seconds, expression)


_KERNEL = (
    finding.Pattern(
        finding.build_xid,
        "",
        300,
        # the instance of a split GPU stands inside the brackets, where other agents miss it
        rf"NVRM: Xid \((?:PCI:)?(?P<pci>{finding.ADDRESS})(?: GPU-I:(?P<gi>\d{{1,3}}))?"
        r"(?: GPU-CI:(?P<ci>\d{1,3}))?\): (?P<xid>\d{1,4})\b"
        r"(?:, pid='?(?P<pid>\d{1,10}|<unknown>)'?)?(?:, name=(?P<process>[^,]{1,64}))?"
        r"(?:.{0,200}?caused by previous Xid (?P<cause>\d{1,4}))?",
    ),
    finding.Pattern(
        finding.build_xid,
        "",
        300,
        rf"NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?(?P<pci>{finding.ADDRESS})\b"
        r".{0,200}?fallen off the bus",
    ),
    # an SXid is followed by lines of data with the same number, which must not count
    finding.Pattern(
        finding.build_sxid,
        "",
        60,
        rf"nvidia-nvswitch(?P<switch>\d{{1,3}}): SXid \(PCI:(?P<pci>{finding.ADDRESS})\): "
        r"(?P<sxid>\d{1,6}), (?P<fatal>Fatal|Non-fatal)(?:, Link (?P<link>\d{1,3}))?",
    ),
    *_nic("temperature", 300, _PORT + r"[Hh]igh [Tt]emperature"),
    *_nic("link_down", 1, _PORT + r"Link (?:is )?[Dd]own"),
    *_nic(
        "health",
        300,
        _PORT + r"(?:health (?:compromised|recovery)|assert_var|[Ff]irmware (?:internal|fatal)"
        r"|[Ff]irmware (?:is )?not responding|firmware error|Fatal error|[Ff]irmware recovery"
        r"|fatal reset|device is down)",
    ),
    *_nic(
        "queue_error",
        60,
        _PORT + r"(?:[Ee]rror cqe|dump_cqe|Malicious Driver Detection|CQ error|QP error)",
        r"infiniband (?P<port>[\w-]{1,30}): (?:dump_cqe|.{0,200}?CQ error)",
    ),
    *_nic(
        "command_failed",
        60,
        _PORT + r"(?:(?:cmd|hwrm).{0,200}?(?:failed|timeout)|wait_func.{0,200}?timeout"
        r"|[Aa]dmin .{0,200}?timeout)",
    ),
    *_nic(
        "timeout",
        60,
        r"NETDEV WATCHDOG: (?P<port>[\w@.-]{1,30}) \([\w-]{1,30}\):? .{0,60}?timed out",
        _PORT + r"(?:TX timeout|tx_timeout|NETDEV WATCHDOG|[Kk]eep alive watchdog timeout"
        r"|[Mm]issing Tx comp)",
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
        r"(?:(?:NMI )?watchdog: )?Watchdog detected hard LOCKUP on cpu (?P<cpu>\d{1,5})",
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
        r".*,task=(?P<process>.{1,64}),pid=(?P<pid>\d{1,10}),uid=",
        r"Memory cgroup out of memory: Kill(?:ed)? process (?P<pid>\d{1,10})"
        r"(?:,? \((?P<process>.{1,64})\))?",
        key=("pid",),
    ),
    *_host(
        "oom_host",
        10,
        r"oom-kill:constraint=.*,task=(?P<process>.{1,64}),pid=(?P<pid>\d{1,10}),uid=",
        r"Out of memory(?: \([\w ]{1,60}\))?: Kill(?:ed)? process (?P<pid>\d{1,10})"
        r"(?:,? \((?P<process>.{1,64})\))?",
        key=("pid",),
    ),
    *_host(
        "memory_corrected",
        1,
        r"EDAC (?P<controller>MC\d{1,4}): \d{1,9} CE .{1,100}? on (?P<dimm>\S{1,100})",
        key=("controller", "dimm"),
    ),
    *_host(
        "memory_uncorrected",
        1,
        r"EDAC (?P<controller>MC\d{1,4}): \d{1,9} UE .{1,100}? on (?P<dimm>\S{1,100})",
        key=("controller", "dimm"),
    ),
    *_host(
        "memory_uncorrected",
        1,
        r"Memory failure: (?P<page>0x[0-9a-f]{1,16}): ",
        key=("page",),
    ),
    *_host(
        "machine_check",
        5,
        r"mce: \[Hardware Error\]: |(?:\[Hardware Error\]: )?Machine check events logged",
    ),
    *_host(
        "pcie_corrected",
        1,
        rf"[\w-]{{1,30}} (?P<pci>{finding.ADDRESS}): (?:AER: )?PCIe Bus Error: severity=Correct",
        _AER + rf"Correct(?:ed|able) error (?:message )?received"
        rf"(?: from|:) (?P<pci>{finding.ADDRESS})",
        key=("pci",),
    ),
    *_host(
        "pcie_uncorrected",
        1,
        rf"[\w-]{{1,30}} (?P<pci>{finding.ADDRESS}): (?:AER: )?PCIe Bus Error: severity=Uncorrect",
        _AER + rf"Uncorrect(?:ed|able) \(.{{1,20}}\) error (?:message )?received"
        rf"(?: from|:) (?P<pci>{finding.ADDRESS})",
        key=("pci",),
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
TABLES = {
    log: tuple((pattern, re.compile(pattern.expression)) for pattern in patterns)
    for log, patterns in (("kernel", _KERNEL), ("fabric_manager", _FABRIC_MANAGER))
}


def match_message(log: str, text: str) -> finding.Finding | None:
    """The finding of a message without its time; None for a message of no concern."""
    for pattern, expression in TABLES[log]:
        if match := expression.match(text):
            return pattern.build_finding(pattern, match)
    return None
