"""The logs of the node: incidents of several messages, and restarts that count nothing twice."""

import itertools
import json
import random
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from servers import wait_until

from lockstep_agent.collectors.node.kernel_log import KernelLog
from lockstep_agent.options import Options
from lockstep_agent.sources.logs import Ring
from lockstep_agent.state_file import StateFile
from lockstep_catalogue import Metric, incidents
from lockstep_catalogue.incidents import HOST_INCIDENT, NIC_INCIDENT
from lockstep_records.kernel.lines import parse_line

from ..fake_tree import FIXTURES
from ..running_agent import COMMAND, running_agent

LOGS = FIXTURES / "kernel-log"


def open_collector(log: Path, folder: Path, boot: str = "one") -> KernelLog:
    folder.mkdir(exist_ok=True)
    (folder / "boot_id").write_text(boot)
    state = StateFile(folder / "state.json")
    return KernelLog({"kernel": log}, folder / "boot_id", folder, state)


def counted(log: KernelLog, metric: Metric) -> dict[tuple[str, ...], float]:
    return {reading.labels: reading.value for reading in log.collect() if reading.metric is metric}


def test_the_five_lines_of_a_real_xid_119_are_one_incident(tmp_path: Path) -> None:
    log = open_collector(LOGS / "dmesg-with-xid-119.log", tmp_path)
    assert counted(log, incidents.GPU_XID_INCIDENTS) == {("0000:9b:00.0", "", "119"): 1}
    [incident] = json.loads(log.recent.json)
    assert incident["messages"] == 5
    assert incident["facts"]["pid"] == "2024380"
    assert incident["facts"]["process"] == "nvidia-smi"
    assert incident["last_seconds"] - incident["first_seconds"] == 355


def test_every_kind_of_incident_is_recognized_and_counted_once(tmp_path: Path) -> None:
    log = open_collector(LOGS / "node.log", tmp_path)
    assert counted(log, incidents.GPU_XID_INCIDENTS) == {
        ("0000:9b:00.0", "", "79"): 1,
        ("0000:9b:00.0", "", "154"): 0,
        ("0000:9b:00.0", "", "fallen_off"): 0,
        ("0000:4e:00.0", "01/00", "13"): 2,
    }
    host_counts = counted(log, incidents.HOST_INCIDENTS)
    assert host_counts == {
        (value,): float(value != "fabric_manager") for value in HOST_INCIDENT.values
    }
    ports = counted(log, incidents.NIC_INCIDENTS)
    assert {kind for _, kind in ports} == set(NIC_INCIDENT.values)
    assert set(ports.values()) == {1}
    assert counted(log, incidents.NVSWITCH_INCIDENTS) == {("0000:86:00.0", "12028", "non_fatal"): 1}


def test_the_same_fault_after_a_quiet_time_is_another_incident(tmp_path: Path) -> None:
    text = "NVRM: Xid (PCI:0000:9b:00): 48, DBE"
    path = tmp_path / "kmsg"
    path.write_text("".join(f"4,{n},{n * 200_000_000},-;{text}\n" for n in (1, 2, 4)))
    assert list(counted(open_collector(path, tmp_path), incidents.GPU_XID_INCIDENTS).values()) == [
        2
    ]


def test_incidents_before_and_after_a_restart_have_different_ids(tmp_path: Path) -> None:
    path, num_counters = tmp_path / "kmsg", 0
    for address in ("9b", "9c"):
        with path.open("a") as file:
            file.write(f"[1.0] NVRM: Xid (PCI:0000:{address}:00): 48, DBE\n")
        log = open_collector(path, tmp_path)
        num_counters = len(counted(log, incidents.GPU_XID_INCIDENTS))
    assert num_counters == 2
    assert len({incident["id"] for incident in json.loads(log.recent.json)}) == 2


def test_a_replaced_file_is_read_from_its_start_and_half_a_line_waits(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("[1.0] NVRM: Xid (PCI:0000:9b:00): 48, DBE\n[2.0] NVRM: Xid (PCI:00")
    log = open_collector(path, tmp_path)
    assert sum(counted(log, incidents.GPU_XID_INCIDENTS).values()) == 1
    with path.open("a") as file:
        file.write("00:9c:00): 48, DBE\n")
    assert sum(counted(log, incidents.GPU_XID_INCIDENTS).values()) == 2
    path.unlink()
    path.write_text("[3.0] NVRM: Xid (PCI:0000:9d:00): 48, DBE\n")
    assert sum(counted(log, incidents.GPU_XID_INCIDENTS).values()) == 3


def test_the_ring_counts_lost_records_and_reads_on_after_an_overrun() -> None:
    def records() -> Iterator[bytes | OSError]:
        yield b"4,7,1000000,-;first\n SUBSYSTEM=pci\n"
        yield BrokenPipeError(32, "overrun")
        yield b"4,12,2000000,-;second\n"
        yield BlockingIOError(11, "nothing more")

    source = records()

    def read(_descriptor: int, _size: int) -> bytes:
        answer = next(source)
        if isinstance(answer, OSError):
            raise answer
        return answer

    ring = Ring(Path("/dev/null"), {"sequence": 6}, read)
    assert [message.text for message in ring.read()] == ["first", "second"]
    assert (ring.lost, ring.position) == (4, {"sequence": 12})


@pytest.mark.parametrize(
    "line",
    [
        "4,1,2500000,-;text",
        "[    2.500000] text",
        "Feb 23 16:24:18 node-7 kernel: [    2.500000] text",
        "Feb 23 16:24:18.123456 node-7 kernel: [    2.500000] text",
        "[    2.500000][ T4711] text",
    ],
)
def test_text_and_clock_are_read_from_every_format_of_a_line(line: str) -> None:
    message = parse_line(line, 99.0)
    assert message is not None
    assert (message.text, message.seconds) == ("text", 2.5)


def test_damaged_state_is_logged_and_counting_starts_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for damage in ("{", "[]", '{"version":1,"counts":[["x",[],1,null]]}', '{"version":1}'):
        (tmp_path / "state.json").write_text(damage)
        log = open_collector(LOGS / "dmesg-with-xid-119.log", tmp_path)
        assert sum(counted(log, incidents.GPU_XID_INCIDENTS).values()) == 1
    assert caplog.text.count("counting starts again") == 4


STORM_LINES = 60  # a kill and a signal, or more of each, in the midst of it


def storm_line(number: int) -> str:
    """A line of a storm: the faults of many GPUs, each reported by three messages."""
    return f"4,{number},{number * 1000},-;NVRM: Xid (PCI:0000:{number // 3:02x}:00): 79, pid=1\n"


def count_xids(text: str) -> int:
    values = re.findall(
        rf"^{incidents.GPU_XID_INCIDENTS.name}{{\S+ (\S+)$", text.replace(", ", ","), re.MULTILINE
    )
    return int(sum(map(float, values)))


def test_restarts_during_a_storm_count_nothing_twice_and_miss_nothing(
    options: Options, tmp_path: Path
) -> None:
    kmsg = tmp_path / "storm.log"
    kmsg.write_text("")
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201  # to reproduce a failure
    chance = random.Random(seed)
    written, highest = 0, 0
    endings = itertools.cycle((signal.SIGKILL, signal.SIGTERM))
    reading = replace(options, kmsg=kmsg, fabric_manager_log=tmp_path / "none.log")
    while written < STORM_LINES:
        with running_agent(reading) as (agent, url):
            first = count_xids(httpx.get(url).text)
            assert highest <= first <= -(-written // 3)
            for _ in range(3):
                num_lines = min(chance.randint(4, 12), STORM_LINES - written)
                with kmsg.open("a") as file:
                    file.writelines(
                        storm_line(number) for number in range(written, written + num_lines)
                    )
                written += num_lines
                highest = max(highest, count_xids(httpx.get(url).text))
            agent.send_signal(next(endings))
            agent.wait(timeout=30)
        with kmsg.open("a") as file:
            file.writelines(
                storm_line(number) for number in range(written, min(written + 2, STORM_LINES))
            )
        written = min(written + 2, STORM_LINES)
    with running_agent(reading) as (_, url):
        wait_until(lambda: count_xids(httpx.get(url).text) == STORM_LINES // 3)
        recent = httpx.get(url.replace("/metrics", "/events")).json()
    assert sum(incident["messages"] for incident in recent) == STORM_LINES


def test_a_node_without_kernel_log_is_served_and_told_once(
    options: Options, tmp_path: Path
) -> None:
    command = [*COMMAND, "--once", "--detail", "--dir", str(tmp_path), "--kmsg", "/no/such"]
    done = subprocess.run(
        [*command, "--sysfs", str(options.sysfs)], capture_output=True, text=True, check=True
    )
    assert incidents.HOST_INCIDENTS.name in done.stdout
    assert done.stderr.count("/no/such") == 1


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("2025-01-17T15:36:15,345059+00:00 text", 1737128175.345059),
        ("kern  :err   : 2025-01-17T15:36:15,345059+02:00 text", 1737120975.345059),
        ("2025-01-17T15:36:15+0000 gpu-7 kernel: text", 1737128175.0),
        ("2025-01-17T15:36:15.500000Z gpu-7 kernel: [ 12.5] text", 1737128175.5),
    ],
)
def test_lines_with_iso_stamps_have_their_own_time_in_a_backlog(line: str, seconds: float) -> None:
    message = parse_line(line, now_seconds=1.8e9)
    assert message is not None
    assert message.text == "text"
    assert message.wall_seconds == pytest.approx(seconds)


def test_syslog_lines_are_of_the_latest_year_that_is_not_in_the_future() -> None:
    now = 1_736_000_000.0  # 4 January 2025
    message = parse_line("Dec 31 12:00:00 gpu-7 kernel: [12.0] text", now_seconds=now)
    assert message is not None
    assert 3 * 86_400 < now - message.wall_seconds < 5.5 * 86_400
    assert message.seconds == 12.0


MEMORY_LINES = {
    48: "48, pid=77, name=python, An uncorrectable double bit error (DBE) has been detected",
    63: "63, pid=77, name=python, Row Remapper: New row marked for remapping",
    94: "94, pid=78, name=python, Contained: SM (0x1). RST: No, D-RST: No",
    45: "45, pid=78, name=python, Ch 00000010",
}


@pytest.mark.parametrize("numbers", [(94,), (63,), (63, 94), (94, 63, 94, 45), (48, 63, 45, 94)])
def test_one_contained_memory_error_is_one_incident_whichever_of_its_lines_come(
    tmp_path: Path, numbers: tuple[int, ...]
) -> None:
    path = tmp_path / "kern.log"
    path.write_text(
        "".join(
            f"2025-01-17T15:36:1{second},000000+00:00 NVRM: Xid (PCI:0000:3b:00): "
            + MEMORY_LINES[number].replace("pid=78", f"pid={78 + second}")
            + "\n"
            for second, number in enumerate(numbers)
        )
    )
    counts = counted(open_collector(path, tmp_path), incidents.GPU_XID_INCIDENTS)
    assert sum(counts.values()) == 1
