"""Which lines of a kernel log are messages of a driver, and which were written by a user."""

import itertools
import time

import pytest

from lockstep_agent.kernel.patterns import match_message
from lockstep_agent.sources.logs import parse_line


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("NVRM: Xid (PCI:0001:9B:00): 31, pid='<unknown>', name=<unknown>, Ch 1", "0001:9b:00.0"),
        ("NVRM: Xid (0000:03:00): 8, Channel 00000001", "0000:03:00.0"),
        ("NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 94, pid=1, name=a, Contained", "05"),
        ("NVRM: The NVIDIA GPU 0000:af:00.0 has fallen off the bus", "fallen_off"),
    ],
)
def test_xids_are_read_in_all_forms_that_drivers_write(text: str, label: str) -> None:
    finding = match_message("kernel", text)
    assert finding
    assert label in finding.labels


@pytest.mark.parametrize(
    "text",
    [
        "mlx5_core 0000:5c:00.0 eth2: Link up",
        "usb 1-1: device descriptor read",
        "NVRM: GPU at PCI:0000:9b:00: GPU-509665ad-b600-ac93-3616-d754b23d636d",
        "nvidia-nvswitch2: SXid (PCI:0000:86:00.0): 12028, Data {0x1, 0x2}",
    ],
)
def test_a_message_of_no_concern_is_none(text: str) -> None:
    assert match_message("kernel", text) is None


XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=a, GPU has fallen off the bus."


@pytest.mark.parametrize(
    "line",
    [
        # Processes that chose these names; the kernel shortens them to 15 characters.
        "[1.0] NVRM: Xid (PCI:[4711]: segfault at 0 ip 0000000000401136 sp 00007ffd error 4 in a",
        "[1.0] traps: NVRM: Xid (PCI:[4711] general protection fault ip:401136 sp:7ffd error:0",
        f"[1.0] process '/tmp/{XID}' started with executable stack",
        "[1.0] mlx5_core 0000:[4711]: segfault at 0 Link down",
        "[1.0] warning: `mlx5_core 0000:' uses wireless extensions: Link down",
        "[1.0] nfs: server a n[1]: segfault not responding",
        f"[1.0] audit: type=1400 comm={XID!r}",
        f"[1.0] usb 1-1: Product: {XID}",
        "[1.0] x: PCIe Bus Error: severity=Uncorrectable 0000:3b:00.0",
        "[1.0] eth0: EDAC MC0: 1 UE memory error on DIMM0",
        # Lines of others, which no kernel wrote.
        f"Feb 23 16:24:18 node-7 train[4711]: {XID}",
        f"Feb 23 16:24:18 node-7 train: kernel: {XID}",
        f"2025-01-17T15:36:15+0000 node-7 train[1]: {XID}",
        f"12,100,1000000,-;{XID}",
        f"user  :notice: [1.0] {XID}",
        f"<13>[1.0] {XID}",
    ],
)
def test_text_that_a_process_chooses_is_no_message_of_a_driver(line: str) -> None:
    message = parse_line(line, 99.0)
    assert message is None or match_message("kernel", message.text) is None


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (
            "oom-kill:constraint=CONSTRAINT_NONE,cpuset=/,global_oom,task_memcg=/a,task=b,pid=1,uid=0,task=x,pid=1,uid=0,pid=4711,uid=1000",
            {"pid": "4711"},
        ),
        (
            "INFO: task a:1 blocked for:4711 blocked for more than 120 seconds.",
            {"process": "a:1 blocked for", "pid": "4711"},
        ),
        (
            "watchdog: BUG: soft lockup - CPU#17 stuck for 22s! [a:1]:4711]",
            {"process": "a:1]", "pid": "4711"},
        ),
        ("Out of memory: Killed process 4711 (a) (b) total-vm:1kB", {"process": "a) (b"}),
        ("INFO: task a\x1b[31m:4711 blocked for more than 120 seconds.", {"process": "a [31m"}),
    ],
)
def test_a_hostile_name_of_a_process_changes_no_other_fact(
    text: str, facts: dict[str, str]
) -> None:
    finding = match_message("kernel", text)
    assert finding is not None
    assert facts.items() <= finding.facts.items()


@pytest.mark.parametrize(
    "text",
    [
        "pcieport 0000:00:1c.5: AER: Multiple Uncorrected (Fatal) error received: 0000:00:1c.5",
        "mlx4_en: eth0: Link Down",
        "bnxt_en 0000:3b:00.0 ens1f0np0: NIC Link is Down",
        "ice 0000:17:00.0 eth3: NETDEV WATCHDOG: CPU: 7: transmit queue 0 timed out 5000 ms",
        "NMI watchdog: Watchdog detected hard LOCKUP on cpu 3",
        "rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 3-... }",
        "NVRM: GPU at 0000:3b:00.0 has fallen off the bus.",
        "Lustre: scratch-OST0001-osc-ff11: Connection to scratch-OST0001 (at 10.0.0.1) was lost",
    ],
)
def test_messages_of_other_drivers_and_kernels_are_found(text: str) -> None:
    assert match_message("kernel", text) is not None


def test_no_message_takes_long_to_match() -> None:
    heads = ("mlx5_core 0000:5c:00.0: ", "NVRM: GPU 0000:5c:00.0 ", "oom-kill:constraint=A,", "")
    for head, piece in itertools.product(
        heads, ("cmd", "hwrm", ",task=", "a ", ":1 blocked ", "0:")
    ):
        begin = time.thread_time()
        match_message("kernel", (head + piece * 1000)[:1000])
        assert time.thread_time() - begin < 0.05, (head, piece)
