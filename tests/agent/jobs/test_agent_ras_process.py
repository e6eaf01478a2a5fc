"""The agent, at a tenth of its periods, beside jobs whose status sockets are honest and hostile."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from outcomes.progress.ras_mesh import as_json, as_text
from prometheus_client.parser import text_string_to_metric_families
from servers import captured, wait_until

from lockstep_catalogue import Metric, agent, training

from ..running_agent import get
from .ras_ranks import RasJob, agent_program, nccl_library

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes of two users"),
    pytest.mark.server,
    pytest.mark.timeout(240),
]
HONEST, HOSTILE, AGENT = 64_001, 64_002, 64_003
MOVES, BEHIND, SILENT = "A: 5 5 5 5 5 5 5 5", "A: 7 7 7 6 7 7 7 7", "A: 7 7 7 x 7 7 7 7"
POLL_SECONDS = 3.0
MEMORY_MIB = 128  # MemoryHigh of the unit: beyond it the kernel slows the agent down
SCRAPE_SECONDS = 3.0


def as_user(user: int, *capabilities: str) -> tuple[str, ...]:
    words = ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups")
    given = ",".join(f"+{each}" for each in capabilities)
    held = (f"--inh-caps={given}", f"--ambient-caps={given}") if given else ()
    return (*words, *held, f"--bounding-set=-all{',' * bool(given)}{given}")


@contextmanager
def agent_as(
    root: Path, *inside: str, log: Path, options: tuple[str, ...] = ()
) -> Iterator[tuple[int, str]]:
    """An agent in a command; its pid and address."""
    command = [*inside, *agent_program(POLL_SECONDS, 1.5), "agent", "--listen", "127.0.0.1:0"]
    command += ["--dir", str(root), "--state", str(root / "state"), "--node", "node-7"]
    root.chmod(0o755)
    (root / "state").mkdir()
    (root / "state").chmod(0o777)
    command += ["--tick", "1s", "--hang-timeout", "5s", *options]
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(command, stderr=file)
    try:
        serving = re.compile(r"^serving (\S+)/metrics", re.MULTILINE)
        wait_until(lambda: serving.search(log.read_text(encoding="utf-8")) is not None)
        match = serving.search(log.read_text(encoding="utf-8"))
        assert match
        wait_until(lambda: get(f"{match[1]}/ready").is_success)
        yield process.pid, match[1]
    finally:
        process.kill()
        process.wait()


Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
"""Values by name and labels."""


@dataclass
class Seen:
    """What the agent said, and what it took."""

    values: Samples = field(default_factory=dict)
    log: str = ""
    scrape_seconds: float = 0.0
    memory_mib: int = 0
    asked_seconds: dict[str, list[float]] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)

    def of(self, metric: Metric, **labels: str) -> list[dict[str, str]]:
        """Labels of the samples of a metric that are not 0."""
        found = [
            dict(of_sample)
            for (name, of_sample), value in self.values.items()
            if name == metric.name and value
        ]
        return [each for each in found if labels.items() <= each.items()]


def samples(url: str) -> Samples:
    families: Any = text_string_to_metric_families
    return {
        (sample.name, tuple(sample.labels.items())): sample.value
        for family in families(get(f"{url}/metrics").text)
        for sample in family.samples
    }


JSON = as_json(BEHIND).encode()
HEAD = b'{\n"nccl_version": "2.29.2", "communicators": '
TEXT = as_text(BEHIND)
MILLION = TEXT.replace("       8  ", " 1000000  ").replace("7 ranks have", "999999 ranks have")
RANKS = ",".join(f'{{"rank":{number}}}' for number in range(500_000)).encode()[: (8 << 20) - 200]
# What a hostile socket sends, how, and the words of the agent's log; empty where it says nothing.
HOSTILE_ANSWERS: dict[str, tuple[bytes, str, str]] = {
    "half an answer": (TEXT.encode()[:-40], "whole", "ends early"),
    "half of JSON": (JSON[:-400], "whole", "ends early"),
    "100 MB": (b"x" * (1 << 20), "100 times", "over 8,388,608 bytes"),
    "no end": (b"x" * (1 << 20), "endless", "over 8,388,608 bytes"),
    "silence": (b"", "silence", "timed out"),
    "another service": (b"HTTP/1.1 200 OK\r\n\r\n", "whole", "holds no answer"),
    "nothing": (b"", "whole", "holds no answer"),
    "a byte a second": (JSON, "drip", "timed out|not whole"),
    "reset": (JSON, "reset", "reset by peer"),
    "nested": (HEAD + b"[" * 10_000, "whole", "ends early"),
    "nested, and closed": (HEAD + b"[" * 10_000 + b"]" * 10_000 + b"}", "whole", "as NCCL"),
    "a name of 1 MB": (JSON.replace(b"AllReduce", b"A" * (1 << 20), 1), "whole", "more functions"),
    "a host of 1 MB": (JSON.replace(b"10.0.0.1", b"h" * (1 << 20), 1), "whole", ""),
    "a number of 400 digits": (JSON.replace(b": 6", b": 6" + b"0" * 399), "whole", "as NCCL"),
    "500,000 ranks": (
        HEAD + b'[{"hash": "0x41", "size": 1000000, "ranks": [' + RANKS, "whole", "ranks",
    ),
    "a million ranks in a line": (MILLION.encode(), "whole", ""),
    "nothing but lines": (TEXT.encode() + b"\n" * (7 << 20), "whole", "more lines"),
    "ranks of another's job": (b"", "whole", ""),
    "it dies while it is asked": (b"", "die", "not its user's any more"),
}  # fmt: skip
# Polls of honest jobs; the newest stays. Then what the agent says of launches and the late rank.
HONEST_JOBS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "one stopped": ((MOVES, SILENT), "hang", "silent_to_ras"),
    "one behind": ((MOVES, BEHIND), "hang", "behind_in_launches_by_ras"),
    "all launched": ((MOVES,), "still", ""),
    "it starts": (("A: 0i 0i 0i 0i 0i 0i 0i 0i",), "starting", ""),
    "it moves": (tuple(MOVES.replace("5", str(n)) for n in range(5, 99)), "moving", ""),
}


def _start_jobs() -> dict[str, RasJob]:
    start = partial(RasJob, nccl_library())
    jobs = {}
    for number, (name, (polls, _, _)) in enumerate(HONEST_JOBS.items()):
        jobs[name] = start(inside=as_user(HONEST), SLURM_JOB_ID=str(100 + number))
        jobs[name].says(*polls)
    for number, (name, (data, how, _)) in enumerate(HOSTILE_ANSWERS.items()):
        jobs[name] = start(inside=as_user(HOSTILE), ranks=1, SLURM_JOB_ID=str(200 + number))
        jobs[name].sends(data, how)
    jobs["ranks of another's job"].says(SILENT, pids=jobs["all launched"].pids)
    first = jobs["first on a port"] = start(inside=as_user(HONEST), SLURM_JOB_ID="301")
    first.says(MOVES, BEHIND)
    second = start(inside=as_user(HONEST), SLURM_JOB_ID="302", port=first.port)
    second.says(*HONEST_JOBS["it moves"][0])
    left = start(inside=as_user(HONEST), SLURM_JOB_ID="400")
    left.says(MOVES)
    left.sends(b"", "leave", number=1)
    return jobs | {"second on a port": second, "its port is taken": left}


@pytest.fixture(scope="module")
def seen(module_memory: Path, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """One agent beside all jobs, until each was asked, and hangs have lasted."""
    found, jobs = Seen(), _start_jobs()
    log = tmp_path_factory.mktemp("ras") / "agent.log"
    thief = _Thief(jobs["its port is taken"])
    with ExitStack() as stack:
        stack.callback(thief.end)
        for job in jobs.values():
            stack.enter_context(job)
        inside = as_user(AGENT, "sys_ptrace", "dac_read_search")
        pid, url = stack.enter_context(agent_as(module_memory, *inside, log=log))
        _watch(found, url, lambda: thief.has_come() and _is_done(found, jobs))
        found.log = log.read_text(encoding="utf-8")
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
        found.memory_mib = int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) // 1024
        found.asked_seconds = {name: job.asked_seconds for name, job in jobs.items()}
        found.ports = {name: job.port for name, job in jobs.items()}
    return found


@dataclass
class _Thief:
    """Another user's process, which listens where a job has listened, and speaks of its pids."""

    victim: RasJob
    own: RasJob | None = None

    def has_come(self) -> bool:
        if self.own is None and (self.victim.folder / "left").exists():
            inside = as_user(HOSTILE)
            self.own = RasJob(nccl_library(), port=self.victim.port, ranks=1, inside=inside)
            self.own.says(SILENT, pids=self.victim.pids)
        return self.own is not None and len(self.own.asked_seconds) > 1

    def end(self) -> None:
        if self.own is not None:
            self.own.__exit__()


def _is_done(found: Seen, jobs: dict[str, RasJob]) -> bool:
    hangs = [each["job_id"] for each in found.of(training.HANG_MISSING)]
    moving = {each["job_id"] for each in found.of(training.JOB_SEEN, launches="moving")}
    return (
        {"100", "101", "301"} <= set(hangs)
        and "302" in moving
        and all(job.asked_seconds for name, job in jobs.items() if "on a port" not in name)
    )


def _watch(found: Seen, url: str, is_done: Callable[[], bool]) -> None:
    """Scrapes until all is done, and for another two polls."""
    end, done_seconds = time.monotonic() + 150, 0.0
    while time.monotonic() < end:
        begin = time.monotonic()
        found.values = samples(url)
        found.scrape_seconds = max(found.scrape_seconds, time.monotonic() - begin)
        done_seconds = done_seconds or (is_done() and time.monotonic())
        if done_seconds and time.monotonic() > done_seconds + 2 * POLL_SECONDS:
            return
        time.sleep(0.5)


def launches_of(seen: Seen, job_id: str) -> str:
    [labels] = seen.of(training.JOB_SEEN, job_id=job_id)
    return labels[training.LAUNCHES.name]


@pytest.mark.parametrize("name", HONEST_JOBS)
def test_an_honest_job_has_its_words_beside_hostile_ones(seen: Seen, name: str) -> None:
    _, launches, evidence = HONEST_JOBS[name]
    job_id = str(100 + list(HONEST_JOBS).index(name))
    assert launches_of(seen, job_id) == launches
    # Nothing that is unknown is called well.
    judged = {
        dict(labels)["job_id"]
        for metric, labels in seen.values
        if metric == training.HUNG_RANKS.name
    }
    assert (job_id in judged) == (launches in {"hang", "moving"})
    missing = seen.of(training.HANG_MISSING, job_id=job_id)
    assert [each["rank"] for each in missing] == ["3"] * bool(evidence)
    for each in missing:
        assert (each["hang_evidence"], each["node"]) == (evidence, "node-7")
        assert each["communicator"] == f"{ord('A'):016x}"
    # A rank that gets no processor notes a question late, so that all of them count together.
    questions = seen.asked_seconds[name]
    assert (len(questions) - 1) * POLL_SECONDS < questions[-1] - questions[0] + POLL_SECONDS


@pytest.mark.parametrize("name", HOSTILE_ANSWERS)
def test_a_hostile_answer_is_logged_in_words_and_says_nothing_of_jobs(
    seen: Seen, name: str
) -> None:
    words = HOSTILE_ANSWERS[name][2]
    lines = re.findall(rf"user={HOSTILE} port={seen.ports[name]} reason=(.*)", seen.log)
    assert re.search(words, " ".join(lines))
    assert bool(words) == bool(lines), lines
    job_id = str(200 + list(HOSTILE_ANSWERS).index(name))
    assert not words or not seen.of(training.HANG_MISSING, job_id=job_id)


def test_nobody_speaks_for_the_job_of_a_port_that_another_user_has_taken(seen: Seen) -> None:
    assert launches_of(seen, "400") == "still"
    assert f"user={HONEST} port={seen.ports['its port is taken']} reason=" in seen.log
    assert not seen.of(training.HANG_MISSING, job_id="400")


def test_two_jobs_on_a_port_have_their_own_words(seen: Seen) -> None:
    assert (launches_of(seen, "301"), launches_of(seen, "302")) == ("hang", "moving")


def test_none_of_it_costs_the_agent_its_memory_or_its_scrapes(seen: Seen) -> None:
    assert seen.memory_mib < MEMORY_MIB
    assert seen.scrape_seconds < SCRAPE_SECONDS
    assert not seen.of(agent.WORKER_STALLED)
    assert not seen.of(agent.COLLECTOR_FAILURES)
    outcomes = {each[agent.RAS_OUTCOME.name] for each in seen.of(agent.RAS_QUESTIONS)}
    assert outcomes == set(agent.RAS_OUTCOME.values)


# What an agent of no privileges sees with some, and without which it says that something is unseen.
CAPABILITIES = {
    ("sys_ptrace", "dac_read_search"): ("job", set[str]()),
    ("sys_ptrace",): ("local", {"DAC_READ_SEARCH"}),
    ("dac_read_search",): (None, {"SYS_PTRACE"}),
    (): (None, {"SYS_PTRACE", "DAC_READ_SEARCH"}),
}


Costs = tuple[set[tuple[str, str]], tuple[str, str]]
"""What an agent calls the job and which ranks it misses; the words of its log and the doctor's."""


@pytest.fixture(scope="module")
def costs(
    module_memory: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, ...], Costs]:
    """By what an agent holds; all of them watch one job at the same time."""
    job_id, folder = f"job-{os.getpid()}", tmp_path_factory.mktemp("capabilities")
    module_memory.chmod(0o755)

    def watch(held: tuple[str, ...]) -> Costs:
        inside, found = as_user(AGENT, *held), Seen()
        root, log = (each / "-".join(("with", *held)) for each in (module_memory, folder))
        root.mkdir()

        def missing() -> set[tuple[str, str]]:
            # Jobs of other tests run beside this one, whose parent is another process.
            own = (job_id, f"local-{os.getpid()}-")
            named = [(each["job_id"], each["rank"]) for each in found.of(training.HANG_MISSING)]
            return {(name.partition("-")[0], rank) for name, rank in named if name.startswith(own)}

        with agent_as(root, *inside, log=log) as (_, url):
            _watch(found, url, lambda: bool(missing()) or not CAPABILITIES[held][0])
        doctor = [*inside, sys.executable, "-m", "lockstep_cli.main", "doctor"]
        done = captured([*doctor, "--duration", "200ms"], timeout=60)
        return missing(), (log.read_text(encoding="utf-8"), done.stdout)

    job = RasJob(nccl_library(), port=28028, inside=as_user(HONEST), TORCHELASTIC_RUN_ID=job_id)
    job.says(MOVES, BEHIND)
    with job, ThreadPoolExecutor() as pool:
        return dict(zip(CAPABILITIES, pool.map(watch, CAPABILITIES), strict=True))


@pytest.mark.parametrize("held", CAPABILITIES, ids="+".join)
def test_agent_and_doctor_say_what_a_missing_capability_costs(
    costs: dict[tuple[str, ...], Costs], held: tuple[str, ...]
) -> None:
    name, lacks = CAPABILITIES[held]
    named, words = costs[held]
    assert named == ({(name, "3")} if name else set())
    for text in words:
        assert set(re.findall(r"without CAP_(\w+)", text)) == lacks
