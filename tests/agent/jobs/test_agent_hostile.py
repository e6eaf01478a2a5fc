"""What one user writes costs the other jobs, the node's series and the agent nothing."""

import math
import os
import re
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from servers import wait_until

from lockstep_agent.jobs.job_snapshot import MAX_JOBS
from lockstep_agent.options import Options
from lockstep_catalogue import agent as agent_metrics
from lockstep_catalogue import gpu, training
from lockstep_records.page.layout import IDENTITY, PERIODIC, SLOT

from ..fake_tree import fill_procfs
from ..live_page import LivePage
from ..running_agent import get, running_agent

TENANT, NEIGHBOUR = 65534, 65533
MIB = 1 << 20
MOST_RESIDENT_BYTES = 160 * MIB
UUID = "GPU-00000000-0000-0000-0000-000000000000"
VOLATILE = (training.GOODPUT_SECONDS.name,)
pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(120),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users"),
]


def give(folder: Path, user: int) -> None:
    """Makes a job's folder and what is in it a user's; links stay as they are."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user, user, follow_symlinks=False)


@dataclass(frozen=True)
class Node:
    """A node with a running agent and a neighbour's job."""

    root: Path
    agent: subprocess.Popen[str]
    url: str

    def scrape(self) -> str:
        """A scrape of a later tick than anything that was written before the call."""
        now = time.time()
        name = agent_metrics.AGENT_TICK.name
        text = ""

        def is_later() -> bool:
            nonlocal text
            began = time.monotonic()
            text = get(self.url).text
            assert time.monotonic() - began < 5  # a busy machine; refusals are counted elsewhere
            ticked = re.search(rf"^{name}\S* (\S+)$", text, re.MULTILINE)
            return ticked is not None and float(ticked[1]) > now + 0.3

        wait_until(is_later)
        return text

    def resident_bytes(self) -> int:
        pages = Path(f"/proc/{self.agent.pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


def series_of(text: str, job: str) -> list[str]:
    lines = [line for line in text.splitlines() if f'job_id="{job}"' in line]
    return [line for line in lines if not line.startswith(VOLATILE)]


def value_of(text: str, name: str, label: str = "") -> float:
    found = re.search(rf"^{name}{{[^}}]*{label}[^}}]*}} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


@pytest.fixture(name="shared")
def _node_with_neighbour(root: Path, options: Options, tmp_path: Path) -> Iterator[Node]:
    root.chmod(0o755)
    good = LivePage(root, job_id="good", gpu_uuid=UUID)
    for number in range(3):
        good.step(number)
    good.write_periodic()
    give(root / "jobs" / "good", NEIGHBOUR)
    procfs = fill_procfs(tmp_path / "proc")
    os.chown(procfs / str(os.getpid()), NEIGHBOUR, NEIGHBOUR)  # the rank is the neighbour's
    with running_agent(replace(options, procfs=procfs)) as (agent, url):
        yield Node(root, agent, url)


Attack = Callable[[Path], None]


def page(job: Path, **fields: object) -> LivePage:
    bad = LivePage(job.parents[1], job_id=job.name, **fields)  # type: ignore[arg-type]  # fields of an identity
    bad.step(1)
    bad.write_periodic()
    return bad


def spans(job: Path, seconds: str) -> None:
    path = page(job).path.with_suffix(".spans.jsonl")
    ids = f'"trace_id":"{"a" * 32}","span_id":"{"b" * 16}","parent_id":"{"c" * 16}"'
    times = f'"start_ns":1,"end_ns":2,"failed":false,"attributes":{{"seconds":{seconds}}}'
    path.write_text(f'{{"name":"slow_step","number":0,{ids},{times}}}\n')


def floats(job: Path, number: float) -> None:
    bad = page(job)
    for name in ("loss", "gradient_norm", "learning_rate"):
        bad.set_optional(name, number)
    for name in ("phase_seconds", "step_seconds_sum", "collective_seconds"):
        bad.writer.floats[SLOT.word(name)] = number
    for name in ("host_bound_seconds", "checkpoint_blocking_seconds"):
        bad.writer.periodic.add(name, number, "sync" if name.startswith("host") else "")
    bad.writer.periodic.know("write_seconds", number)
    bad.writer.periodic.know("peak_flops", number)
    bad.writer.periodic.commit(1)
    bad.commit()


def counts(job: Path) -> None:
    bad = page(job)
    for name in ("steps", "tokens", "samples", "step_buckets"):
        bad.writer.words[SLOT.word(name)] = (1 << 64) - 1
    bad.commit()


def lone_write_step(job: Path) -> None:
    periodic = page(job).writer.periodic
    periodic.words[PERIODIC.word("present")] &= ~PERIODIC.presence["write_seconds"]
    periodic.commit(1)


def file_of_events(content: bytes) -> Attack:
    def write(job: Path) -> None:
        page(job)
        (job / "events.jsonl").write_bytes(content)

    return write


def fifo(name: str) -> Attack:
    def make(job: Path) -> None:
        page(job)
        os.mkfifo(job / name)

    return make


def links(job: Path) -> None:
    folder, jobs = page(job).path.parent, job.parent
    (folder / "rank-00002.page").symlink_to(jobs / "good" / "0" / "rank-00000.page")
    (job / "1").symlink_to(jobs / "good" / "0")
    (jobs / "worse").symlink_to(jobs / "good")


def noise(job: Path) -> None:
    page(job).path.write_bytes(os.urandom(4096))


def event(time_text: str, reason: str = "x") -> bytes:
    start = '{"kind":"job_finished","job_id":"good","attempt":0,"id":"1","version":1'
    return f'{start},"fields":{{"reason":"{reason}"}},"time":{time_text}}}\n'.encode()


ATTACKS: dict[str, Attack] = {
    "a checkpoint's step without its seconds": lone_write_step,
    "numbers that are NaN": lambda job: floats(job, math.nan),
    "numbers that are infinite": lambda job: floats(job, math.inf),
    "negative numbers": lambda job: floats(job, -1e300),
    "counts at the end of their range": counts,
    "a slow step of 400 digits": lambda job: spans(job, "9" * 400),
    "a slow step of 1e999": lambda job: spans(job, "1e999"),
    "a slow step of no number": lambda job: spans(job, '"x"'),
    "an end in 400 digits": file_of_events(event("9" * 400)),
    "an end at 1e999": file_of_events(event("1e999")),
    "an end with a lone surrogate": file_of_events(event("1.0", "\\ud800")),
    "events nested without end": file_of_events(b"[" * 100_000 + b"\n"),
    "events of 20 MiB": file_of_events(event("1.0") * (20 * MIB // 150)),
    "a FIFO for the events": fifo("events.jsonl"),
    "a FIFO for the switches": fifo("switches.json"),
    "a FIFO for a page": fifo("0/rank-00007.page"),
    "a FIFO for the spans": fifo("0/rank-00000.spans.jsonl"),
    "links to the neighbour's pages": links,
    "the neighbour's GPU and another cluster": lambda job: page(
        job, gpu_uuid=UUID, cluster="west", project="speech" * 10
    ).step(2),
    "a million steps to come": lambda job: page(job).set_optional("step", 1 << 62),
    "noise for a page": noise,
}


def test_no_page_or_side_file_changes_a_neighbours_series_or_stalls_a_lane(shared: Node) -> None:
    before = series_of(shared.scrape(), "good")
    assert len(before) > 50
    for number, attack in enumerate(ATTACKS.values()):
        job = shared.root / "jobs" / f"bad-{number}"
        attack(job)
        give(job, TENANT)
    slow_collectors_ran = time.monotonic() + 11
    wait_until(lambda: time.monotonic() > slow_collectors_ran)
    text = shared.scrape()
    assert series_of(text, "good") == before
    for line in text.splitlines():
        if line.startswith(
            (agent_metrics.WORKER_STALLED.name, agent_metrics.COLLECTOR_FAILURES.name)
        ):
            assert line.endswith(" 0.0"), line
    assert value_of(text, agent_metrics.JOBS_SKIPPED.name, 'collector="ranks"') > 0
    assert not re.search(rf'^{gpu.GPU_OWNER_INFO.name}.*job_id="[^"]*bad', text, re.MULTILINE)
    assert 'cluster="west"' not in text
    assert shared.resident_bytes() < MOST_RESIDENT_BYTES


def copies(root: Path, job: str, num_ranks: int) -> None:
    """A job of so many ranks: copies of one page but for the rank."""
    first = LivePage(root, job_id=job, world_size=num_ranks, rank=0)
    first.step(1)
    for rank in range(1, num_ranks):
        path = first.path.with_name(f"rank-{rank:05d}.page")
        path.write_bytes(first.path.read_bytes())
        other = bytearray(path.read_bytes())
        at = IDENTITY.offsets["rank"]
        other[at : at + 4] = rank.to_bytes(4, "little")
        checksum_at = IDENTITY.offsets["checksum"]
        other[checksum_at : checksum_at + 4] = zlib.crc32(other[:checksum_at]).to_bytes(4, "little")
        path.write_bytes(other)


def test_thousands_of_files_jobs_and_ranks_cost_their_user_and_nobody_else(shared: Node) -> None:
    before = series_of(shared.scrape(), "good")
    node_before = [
        line for line in shared.scrape().splitlines() if line.startswith("lockstep_gpu_up")
    ]
    for number in range(300):
        fake = shared.root / "jobs" / f"a-fake-{number}" / "0"
        fake.mkdir(parents=True)
        (fake / "rank-00000.page").touch()
        give(fake.parent, TENANT)
    copies(shared.root, "many-ranks", 1500)
    give(shared.root / "jobs" / "many-ranks", TENANT)
    empty = shared.root / "jobs" / "empty" / "0"
    empty.mkdir(parents=True)
    for rank in range(40_000):
        (empty / f"rank-{rank:05d}.page").touch()
    give(empty.parent, TENANT)
    num_cut = 302 - MAX_JOBS  # the neighbour's and the tenant's newest stay
    name = agent_metrics.JOBS_CUT.name
    wait_until(lambda: value_of(get(shared.url).text, name, 'bound="jobs"') == num_cut)
    text = shared.scrape()
    assert series_of(text, "good") == before
    assert node_before == [line for line in text.splitlines() if line.startswith("lockstep_gpu_up")]
    assert value_of(text, agent_metrics.JOBS_CUT.name, 'bound="files"') + value_of(
        text, agent_metrics.JOBS_CUT.name, 'bound="pages"'
    )
    assert sum(not line.startswith("#") for line in text.splitlines()) < 13_000
    assert shared.resident_bytes() < MOST_RESIDENT_BYTES
    assert value_of(text, agent_metrics.WORKER_STALLED.name, 'worker="ranks"') == 0
