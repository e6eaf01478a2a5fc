"""The meaning of kernel messages, as one table; the first pattern that matches decides.

A pattern begins where the message begins, with the driver and the device's address. A process
chooses its own name, which the kernel prints at the begin of some messages, but of 15 characters:
too few for any of these.
"""

import re

from lockstep_agent.kernel import finding

_DRIVERS = "mlx4_core|mlx4_en|mlx5_core|mlx5_ib|ena|efa|bnxt_en|bnxt_re|ice|irdma|idpf|gve"
_PORT = (
    rf"(?:(?:{_DRIVERS}) (?P<pci>{finding.ADDRESS})(?: (?P<port>[a-z][\w@.-]{{1,30}})(?=:))?"
    r"|mlx4_en: (?P<port2>[a-z][\w@.-]{1,30})): ?.{0,200}?"
)
_AER = rf"(?:pcieport {finding.ADDRESS}: )?AER: (?:Multiple )?"

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
    finding.Pattern(finding.build_nic, "temperature", 300, _PORT + r"[Hh]igh [Tt]emperature"),
    finding.Pattern(finding.build_nic, "link_down", 1, _PORT + r"Link (?:is )?[Dd]own"),
    finding.Pattern(
        finding.build_nic,
        "health",
        300,
        _PORT + r"(?:health (?:compromised|recovery)|assert_var|[Ff]irmware (?:internal|fatal)"
        r"|[Ff]irmware (?:is )?not responding|firmware error|Fatal error|[Ff]irmware recovery"
        r"|fatal reset|device is down)",
    ),
    finding.Pattern(
        finding.build_nic,
        "queue_error",
        60,
        _PORT + r"(?:[Ee]rror cqe|dump_cqe|Malicious Driver Detection|CQ error|QP error)",
    ),
    finding.Pattern(
        finding.build_nic,
        "timeout",
        60,
        r"NETDEV WATCHDOG: (?P<port>[\w@.-]{1,30}) \([\w-]{1,30}\):? .{0,60}?timed out",
    ),
    finding.Pattern(
        finding.build_nic,
        "command_failed",
        60,
        _PORT + r"(?:(?:cmd|hwrm).{0,200}?(?:failed|timeout)|wait_func.{0,200}?timeout"
        r"|[Aa]dmin .{0,200}?timeout)",
    ),
    finding.Pattern(
        finding.build_nic,
        "timeout",
        60,
        _PORT + r"(?:TX timeout|tx_timeout|NETDEV WATCHDOG|[Kk]eep alive watchdog timeout"
        r"|[Mm]issing Tx comp)",
    ),
    finding.Pattern(
        finding.build_nic,
        "queue_error",
        60,
        r"infiniband (?P<port>[\w-]{1,30}): (?:dump_cqe|.{0,200}?CQ error)",
    ),
    finding.Pattern(
        finding.build_host,
        "soft_lockup",
        60,
        r"(?:(?:NMI )?watchdog: )?BUG: soft lockup - CPU#(?P<cpu>\d{1,5})"
        r" stuck for (?P<seconds>\d{1,8})s!"
        r"(?: \[(?P<process>.{1,64}):(?P<pid>\d{1,10})\])?",
        ("cpu",),
    ),
    finding.Pattern(
        finding.build_host,
        "hard_lockup",
        60,
        r"(?:(?:NMI )?watchdog: )?Watchdog detected hard LOCKUP on cpu (?P<cpu>\d{1,5})",
        ("cpu",),
    ),
    finding.Pattern(
        finding.build_host,
        "hung_task",
        300,
        r"INFO: task (?P<process>.{1,64}):(?P<pid>\d{1,10}) blocked"
        r" .{0,60}?for more than (?P<seconds>\d{1,8}) seconds",
        ("pid",),
    ),
    finding.Pattern(
        finding.build_host,
        "rcu_stall",
        60,
        r"(?:rcu: )?INFO: rcu\w{0,30}+ (?:self-detected stall|detected (?:expedited )?stalls)",
    ),
    # newer kernels write "oom-kill:" and "Out of memory", older ones only the second; the pid as
    # key makes one incident of both
    finding.Pattern(
        finding.build_host,
        "oom_cgroup",
        10,
        r"oom-kill:constraint=CONSTRAINT_MEMCG,.*?,oom_memcg=(?P<cgroup>[^,]{1,400}),"
        r".*,task=(?P<process>.{1,64}),pid=(?P<pid>\d{1,10}),uid=",
        ("pid",),
    ),
    finding.Pattern(
        finding.build_host,
        "oom_host",
        10,
        r"oom-kill:constraint=.*,task=(?P<process>.{1,64}),pid=(?P<pid>\d{1,10}),uid=",
        ("pid",),
    ),
    finding.Pattern(
        finding.build_host,
        "oom_cgroup",
        10,
        r"Memory cgroup out of memory: Kill(?:ed)? process (?P<pid>\d{1,10})"
        r"(?:,? \((?P<process>.{1,64})\))?",
        ("pid",),
    ),
    finding.Pattern(
        finding.build_host,
        "oom_host",
        10,
        r"Out of memory(?: \([\w ]{1,60}\))?: Kill(?:ed)? process (?P<pid>\d{1,10})"
        r"(?:,? \((?P<process>.{1,64})\))?",
        ("pid",),
    ),
    finding.Pattern(
        finding.build_host,
        "memory_corrected",
        1,
        r"EDAC (?P<controller>MC\d{1,4}): \d{1,9} CE .{1,100}? on (?P<dimm>\S{1,100})",
        ("controller", "dimm"),
    ),
    finding.Pattern(
        finding.build_host,
        "memory_uncorrected",
        1,
        r"EDAC (?P<controller>MC\d{1,4}): \d{1,9} UE .{1,100}? on (?P<dimm>\S{1,100})",
        ("controller", "dimm"),
    ),
    finding.Pattern(
        finding.build_host,
        "memory_uncorrected",
        1,
        r"Memory failure: (?P<page>0x[0-9a-f]{1,16}): ",
        ("page",),
    ),
    finding.Pattern(
        finding.build_host,
        "machine_check",
        5,
        r"mce: \[Hardware Error\]: |(?:\[Hardware Error\]: )?Machine check events logged",
    ),
    finding.Pattern(
        finding.build_host,
        "pcie_corrected",
        1,
        rf"[\w-]{{1,30}} (?P<pci>{finding.ADDRESS}): (?:AER: )?PCIe Bus Error: severity=Correct",
        ("pci",),
    ),
    finding.Pattern(
        finding.build_host,
        "pcie_uncorrected",
        1,
        rf"[\w-]{{1,30}} (?P<pci>{finding.ADDRESS}): (?:AER: )?PCIe Bus Error: severity=Uncorrect",
        ("pci",),
    ),
    finding.Pattern(
        finding.build_host,
        "pcie_corrected",
        1,
        _AER + rf"Correct(?:ed|able) error (?:message )?received"
        rf"(?: from|:) (?P<pci>{finding.ADDRESS})",
        ("pci",),
    ),
    finding.Pattern(
        finding.build_host,
        "pcie_uncorrected",
        1,
        _AER + rf"Uncorrect(?:ed|able) \(.{{1,20}}\) error (?:message )?received"
        rf"(?: from|:) (?P<pci>{finding.ADDRESS})",
        ("pci",),
    ),
    finding.Pattern(
        finding.build_host,
        "file_server_silent",
        300,
        r"nfs: server (?P<server>\S{1,255}) not responding",
        ("server",),
    ),
    finding.Pattern(
        finding.build_host,
        "file_server_silent",
        300,
        r"Lustre: (?:\S{1,200}: )?Connection to (?P<server>\S{1,255}) .{0,100}?was lost",
        ("server",),
    ),
)
_FABRIC_MANAGER = (
    finding.Pattern(
        finding.build_host,
        "fabric_manager",
        60,
        r"\[(?P<level>ERROR|FATAL|CRITICAL)\] (?:\[tid \d+\] )?(?P<message>[^\d]{0,60})",
        ("message",),
    ),
)
TABLES = {
    "kernel": tuple((pattern, re.compile(pattern.expression)) for pattern in _KERNEL),
    "fabric_manager": tuple(
        (pattern, re.compile(pattern.expression)) for pattern in _FABRIC_MANAGER
    ),
}


def match_message(log: str, text: str) -> finding.Finding | None:
    """The finding of a message without its time; None for a message of no concern."""
    for pattern, expression in TABLES[log]:
        if match := expression.match(text):
            return pattern.build_finding(pattern, match)
    return None
