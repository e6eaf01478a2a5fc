"""Spoiled kernel logs, rank pages and answers of a kubelet, for the agent's fuzz test."""

import random
import tempfile
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from lockstep_agent.collector import AnyReading, Reading
from lockstep_agent.collectors.gpu.allocation import GpuAllocation, GpuInUse
from lockstep_agent.collectors.jobs.bus import Bus
from lockstep_agent.collectors.jobs.hangs import Hangs
from lockstep_agent.collectors.jobs.ranks import Ranks
from lockstep_agent.collectors.node.kernel_log import KernelLog
from lockstep_agent.jobs.page_store import PageStore
from lockstep_agent.sources.pod_resources import message_classes, parse_response
from lockstep_agent.state_file import StateFile
from lockstep_catalogue import Kind as MetricKind
from lockstep_catalogue import incidents
from lockstep_outcomes.progress.hangs import HangTimeouts
from lockstep_records.files.jobs import CANDIDATE_ROOTS, page_path

from ..conftest import FIXTURES
from ..live_page import LivePage

_MOST_LINES = 30
_HANG_SECONDS = 5.0
_FRAGMENTS = (
    "", "0", "-1", "99999999999999999999", "ffffffff:ff:ff", "\x00", "\u202e", "\u0663", '"\\',
    ",", "mlx5_core ", "NVRM: Xid (PCI:", " caused by previous Xid 79",
)  # fmt: skip


@cache
def _lines() -> tuple[str, ...]:
    logs = sorted((FIXTURES / "kernel-log").glob("*.log"))
    return tuple(line for log in logs for line in log.read_text().splitlines())


def _line(chance: random.Random) -> bytes:
    """A line of a log, spoiled more often than not."""
    line = chance.choice(_lines())
    for _ in range(chance.randrange(4)):
        at = chance.randrange(len(line) + 1)
        line = line[:at] + chance.choice(_FRAGMENTS) + line[at + chance.randrange(6) :]
    body = line.encode(errors="replace")
    return (
        chance.randbytes(chance.randrange(60)) if chance.random() < 0.1 else body
    ) + b"\n"  # one in ten


def kernel_logs(chance: random.Random, folder: Path) -> Iterator[AnyReading]:
    """A spoiled log that grows while the agent restarts; nothing is counted twice."""
    path = folder / "kmsg"
    body = b"".join(_line(chance) for _ in range(chance.randint(1, _MOST_LINES)))
    split_at = chance.randrange(len(body) + 1)
    path.write_bytes(body[:split_at])
    paths = {"kernel": path, "fabric_manager": path}

    def agent(state: str) -> list[Reading]:
        log = KernelLog(paths, folder / "boot_id", folder, StateFile(folder / state))
        return list(log.collect())

    before = _counters(agent("restarted"))
    with path.open("ab") as file:
        file.write(body[split_at:])
    after = agent("restarted")
    again = _counters(agent("restarted"))
    assert all(again[series] >= number for series, number in before.items()), "a counter fell"
    assert again == _counters(after), "a message was counted twice"
    assert _messages(again) == _messages(_counters(agent("at once"))), "a message was missed"
    yield from after


def _counters(readings: Iterable[AnyReading]) -> dict[tuple[str, ...], float]:
    return {
        (each.metric.name, *each.labels): each.value
        for each in readings
        if isinstance(each, Reading) and each.metric.kind is MetricKind.COUNTER
    }


def _messages(counters: dict[tuple[str, ...], float]) -> list[float]:
    return [value for (name, *_), value in counters.items() if name == incidents.LOG_READ.name]


@cache
def _good_page() -> bytes:
    with tempfile.TemporaryDirectory(dir=CANDIDATE_ROOTS[-1].parent) as folder:
        page = LivePage(Path(folder), gpu_uuid="GPU-a")
        for number in range(8):
            page.step(number)
        page.write_periodic()
        page.phase("forward", ago_seconds=2 * _HANG_SECONDS)
        body: bytes = page.path.read_bytes()
    return body


def pages(chance: random.Random, folder: Path) -> Iterator[AnyReading]:
    """Good pages that are spoiled between two readings: no counter falls."""
    paths = [page_path(folder, "job", attempt, rank) for attempt in (0, 1) for rank in (0, 1)]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_good_page())
    pages = PageStore(folder, folder)
    ranks = Ranks(pages, "node-7", linger_seconds=1e12)
    live = PageStore(folder, Path("/proc"))
    judges = (
        Hangs(live, "node-7", Path("/proc"), HangTimeouts(step_seconds=_HANG_SECONDS)),
        Bus(pages, "node-7"),
    )
    before = _counters(ranks.collect())
    assert any(list(judge.collect()) for judge in judges), "no collector judges good pages"
    for path in paths:
        _spoil(chance, path)
    after = list(ranks.collect())
    now = _counters(after)
    assert all(now[series] >= number for series, number in before.items()), "a counter fell"
    yield from after
    for judge in judges:
        yield from judge.collect()
    allocation = GpuAllocation(list, pages, procfs=folder, kubelet=folder / "none")
    yield from allocation.collect()


def _spoil(chance: random.Random, path: Path) -> None:
    body = bytearray(path.read_bytes())
    how = chance.randrange(5)
    if how == 0:
        path.unlink()
        return
    if how == 1:
        del body[chance.randrange(len(body)) :]
    for _ in range(chance.randint(0, 20)):
        if body:
            body[chance.randrange(min(len(body), 4096))] = chance.randrange(256)
    path.write_bytes(body)


def _pods(chance: random.Random) -> list[dict[str, Any]]:
    """Pods with any names and devices, as the kubelet's answer holds them."""
    names = (
        "GPU-a",
        "GPU-a::1",
        "MIG-a",
        "nvidia0/gi1",
        "gpu-0",
        "",
        "x" * 300,
        "a\nb",
        *_FRAGMENTS,
    )
    uuids = [name for name in names if "\x00" not in name]
    existing = ("GPU-a", "GPU-a::1", "MIG-a", chance.choice(uuids))
    return [
        {
            "name": chance.choice(uuids),
            "namespace": chance.choice(uuids),
            "containers": [
                {
                    "name": chance.choice(uuids),
                    "devices": [
                        {"device_ids": [chance.choice(existing), *chance.choices(uuids, k=2)]}
                    ],
                    "dynamic_resources": [
                        {
                            "claim_name": chance.choice(uuids),
                            "claim_resources": [
                                {"driver_name": "gpu.nvidia.com", "device_name": "gpu-0"}
                            ],
                        }
                    ],
                }
            ],
        }
        for _ in range(chance.randrange(4))
    ]


def pod_resources(chance: random.Random, folder: Path) -> Iterator[AnyReading]:
    """Answers of a kubelet with any names in them, whole and spoiled."""
    pods = _pods(chance)
    body = bytearray(message_classes()["Response"](pod_resources=pods).SerializeToString())
    for _ in range(chance.choice((0, 0, 1, 3)) if body else 0):
        body[chance.randrange(len(body))] = chance.randrange(256)
    socket = folder / "kubelet.sock"
    socket.touch()
    gpus = [GpuInUse(index=0, uuid="GPU-a", instances=("MIG-a",))]
    yield from GpuAllocation(
        lambda: gpus,
        PageStore(folder, folder),
        procfs=folder,
        kubelet=socket,
        allocations=lambda _: parse_response(bytes(body)),
    ).collect()
