"""Which lines of a kernel log are messages of a driver, and which were written by a user."""

import itertools
import random
import time
from pathlib import Path

import pytest

from lockstep_catalogue.incidents import GPU_XID_INCIDENTS, NVSWITCH_INCIDENTS
from lockstep_records.kernel.lines import parse_line
from lockstep_records.kernel.patterns import match_message


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


# By somebody who had not read the code, in the forms of kernels 5.4 to 6.18: what may come of a
# record, and the record. Processes, files, arguments and facilities of users stand in them.
RECORDS = [
    line.split("\t")
    for line in Path(__file__).with_name("kernel_lines.txt").read_text("utf-8").splitlines()
]
QUOTES = (
    "{comm}[{pid}]: segfault at 8 ip 00007f12a0001139 sp 00007ffe5a1b2c30 error 4 in {file}[7f1+1]",
    "{comm}[{pid}]: segfault at 0 ip 0 sp 0 error 4 in {file}[b9,7f1+1] likely on CPU 2 (core 1)",
    "traps: {comm}[{pid}] general protection fault ip:1 sp:7 error:0 in {file}[14f+2]",
    "{comm}[{pid}] trap divide error ip:55 sp:7f error:0 in {file}[55+1]",
    "{comm}[{pid}]: bad frame in sigreturn frame:0 ip:1 sp:2 orax:3 in {file}[1+1]",
    "{comm}[{pid}]: unhandled exception: DABT, ESR 0x92, at 0x0 in {file}[1,aa+1]",
    "{comm} ({pid}): drop_caches: 3",
    "{file}: {comm}: potentially unexpected fatal signal 11.",
    "process '{file}' launched '{file}' with NULL argv: empty string added",
    "process '{file}' started with executable stack",
    'audit: type=1701 audit(1.1:2): auid=1 uid=1 pid={pid} comm="{comm}" exe="{file}" sig=6',
    "warning: `{comm}' uses wireless extensions which will stop working for Wi-Fi 7 hardware",
    "CPU: 3 PID: {pid} Comm: {comm} Not tainted 6.1.0",
    "{comm}: page allocation failure: order:4, mode:0xcc0, cpuset={file},mems_allowed=0",
    "{comm} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
)


def kind_of(text: str) -> str:
    message = parse_line(text, 99.0)
    finding = message and match_message("kernel", message.text)
    if not finding:
        return "none"
    name = finding.metric.name
    places = {GPU_XID_INCIDENTS.name: ("xid:", 2), NVSWITCH_INCIDENTS.name: ("sxid:", 1)}
    prefix, index = places.get(name, ("", -1))
    return prefix + (finding.labels[index].partition("-")[0] if prefix else finding.labels[index])


@pytest.mark.parametrize(("kinds", "record"), RECORDS)
def test_a_record_is_what_the_kernel_says_and_not_what_it_quotes(kinds: str, record: str) -> None:
    assert kind_of(record) in kinds.split("|")


@pytest.mark.parametrize("number", [2000, pytest.param(100_000, marks=pytest.mark.release)])
def test_no_text_of_a_process_makes_a_message_of_a_driver(number: int) -> None:
    rng = random.Random(51)
    texts = [record.partition(";")[2] for kinds, record in RECORDS if "none" not in kinds]
    for _ in range(number):
        begin = rng.choice(texts)
        words = {
            "comm": rng.choice((begin, rng.choice(texts)[rng.randrange(40) :]))[:15],
            "file": rng.choice(texts)[rng.choice((0, 0, rng.randrange(60))) :],
            "pid": rng.randrange(1, 1 << 22),
        }
        text = rng.choice(QUOTES).format(**words)
        assert match_message("kernel", text) is None, text


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
def test_a_processs_hostile_name_changes_no_other_fact(text: str, facts: dict[str, str]) -> None:
    finding = match_message("kernel", text)
    assert finding is not None
    assert facts.items() <= finding.facts.items()


def test_no_message_takes_long_to_match() -> None:
    heads = ("mlx5_core 0000:5c:00.0: ", "NVRM: GPU 0000:5c:00.0 ", "oom-kill:constraint=A,", "")
    for head, piece in itertools.product(
        heads, ("cmd", "hwrm", ",task=", "a ", ":1 blocked ", "0:")
    ):
        begin = time.thread_time()
        match_message("kernel", (head + piece * 1000)[:1000])
        assert time.thread_time() - begin < 0.05, (head, piece)
