"""The simulated cluster live: one server answers the scrapes of all its agents and of its ledger.

A node's answer is what the real agent rendered for one node, with the names of this one, and with
values that go on: counters at the rate of two scrapes, sensors with noise, and what the ranks of
its job do, who straggle, hang, come again and make room for another job.
"""

import asyncio
import re
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, replace
from threading import Thread

import numpy as np

from lockstep_alerts.stack.servers import SCRAPE_LIMITS
from lockstep_catalogue import Kind, agent, metrics_of, training
from lockstep_catalogue.metric import Endpoint

from .cluster import CLUSTER_NAME, EXTRA, GPUS, LATE_PHASE, Cluster, Job, Values, simulated
from .fake_node import JOB, STEP_SECONDS
from .ledger_series import ledger_series

_GAP_SECONDS = 30.0  # between two attempts, and between two jobs on the same nodes
_LIFE_SECONDS = 240.0
_SENSOR = re.compile("_(watts|celsius|hertz|ratio|(used|free|available)_bytes|per_second)$")
_NOISE = 0.01
_COUNTING = tuple(
    name
    for metric in metrics_of(Endpoint.AGENT)
    if metric.kind is not Kind.GAUGE
    for name in metric.sample_names
)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_HEAD = "HTTP/1.1 {}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\r\n"
_Line = tuple[str, dict[str, str], Values]
"""Name, labels, and what its value has of each part of a moment."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What values are made of: 1, seconds of the cluster and of the job, times, a hang."""

    constant: float
    elapsed: float
    productive: float
    lost: float
    now: float
    progress: float
    is_hung: float


_CONSTANT, _ELAPSED, _PRODUCTIVE, _LOST, _NOW, _PROGRESS, _HUNG = np.eye(7)


def moment(job: Job | None, cluster: Cluster, now: float) -> tuple[tuple[str, int] | None, Moment]:
    """The name and attempt of a job that runs, None where none does, and what it does."""
    since = now - float(cluster.times[0])
    late = max(now - cluster.halfway, 0.0)
    key: tuple[str, int] | None = None if job is None else (job.job_id, 0)
    productive, lost, progress = since, 0.0, now
    if job and job.life_seconds:
        number, productive = divmod(since + sum(map(ord, job.job_id)) % 97, job.life_seconds)
        is_gap = productive > job.life_seconds - _GAP_SECONDS
        key = None if is_gap else (f"{job.job_id}-{number:.0f}", 0)
    elif job and late and job.restarts:
        productive = late - _GAP_SECONDS
        key = (job.job_id, 1) if productive > 0 else None
    elif job and late and job.hangs:
        productive, progress = since - late, cluster.halfway
    elif job and job.slow_rank is not None:
        lost = late * EXTRA / (1 + EXTRA)
        productive = since - lost
    hangs = float(bool(job and job.hangs and late))
    return key, Moment(1.0, since, productive, lost, now, progress, hangs)


def live(num_nodes: int, begin: float, seconds: float, scrape_seconds: int) -> Cluster:
    """The simulated cluster from a time on, with short jobs on its spare nodes; faults halfway."""
    cluster = simulated(
        num_nodes=num_nodes,
        end=begin + seconds,
        range_seconds=int(seconds),
        scrape_seconds=scrape_seconds,
    )
    short = tuple(
        Job(job_id=f"short-{node}", project="vision", queue="standard", job_class="research",
            nodes=(node,), life_seconds=_LIFE_SECONDS)
        for node in cluster.nodes if cluster.job_on(node) is None
    )  # fmt: skip
    return replace(cluster, jobs=(*cluster.jobs, *short))


class Template:
    """What the agent renders for a node with one job, and how each value goes on."""

    def __init__(self, first: str, second: str) -> None:
        before, after = (dict(samples_of(text)) for text in (first, second))
        self.comments = [line for line in second.splitlines() if line.startswith("#")]
        [tick] = [stem for stem in after if stem.startswith(agent.AGENT_TICK.name)]
        steps = next(stem for stem in after if stem.startswith(training.STEPS.name))
        seconds = after[tick] - before[tick]
        productive = (after[steps] - before[steps]) * STEP_SECONDS
        self.lines: list[_Line] = []
        for stem, value in after.items():
            name, labels = stem.partition("{")[0], labels_of(stem)
            growth = value - before.get(stem, value)
            parts = value * _CONSTANT
            if name == training.LAST_PROGRESS.name:
                parts = _PROGRESS
            elif name == agent.AGENT_TICK.name:
                parts = _NOW
            elif name == training.RANK_WAITING.name and labels["rank"] != "0":
                parts = _HUNG
            elif name in _COUNTING and labels.get("job_id") == JOB:
                parts = growth / productive * _PRODUCTIVE
            elif name in _COUNTING:
                parts = parts + growth / seconds * _ELAPSED
            elif name == training.STEP.name:
                parts = _PRODUCTIVE / STEP_SECONDS
            self.lines.append((name, labels, parts))


def samples_of(text: str) -> Iterator[tuple[str, float]]:
    """Name with labels, and value, of each sample of a scrape."""
    for line in text.splitlines():
        if not line.startswith("#"):
            stem, _, value = line.rpartition(" ")
            yield stem, float(value)


def labels_of(stem: str) -> dict[str, str]:
    """The labels of a sample."""
    return dict(_LABEL.findall(stem))


def _stem(name: str, labels: dict[str, str]) -> str:
    pairs = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return f"{name}{{{pairs}}}"


class Node:
    """The answers of one node."""

    def __init__(self, template: Template, cluster: Cluster, number: int) -> None:
        self._template, self._cluster, self._number = template, cluster, number
        self.name = cluster.nodes[number]
        self._job = cluster.job_on(self.name)
        self._random = np.random.default_rng(number)
        self._key: tuple[str, int] | str | None = "not built"

    def text(self, now: float) -> bytes:
        """The scrape at a time."""
        key, now_moment = moment(self._job, self._cluster, now)
        if key != self._key:
            self._build(key)
        values = self._parts @ np.array(astuple(now_moment))
        values += self._noise * self._random.standard_normal(len(values))
        lines = [f"{stem} {x:.13g}" for stem, x in zip(self._stems, values.tolist(), strict=True)]
        return "\n".join([self._still, *lines, ""]).encode()

    def _build(self, key: tuple[str, int] | None) -> None:
        """The series while one job runs: text for those that stay as they are."""
        self._key, still = key, list(self._template.comments)
        self._stems: list[str] = []
        moving: list[Values] = []
        for name, labels, parts in self._template.lines:
            if labels.get("job_id") == JOB and key is None:
                continue
            named = self._named(labels, key)
            stem = _stem(name, named)
            own = self._own_parts(name, named, parts, key)
            if own[1:].any() or _SENSOR.search(name):
                self._stems.append(stem)
                moving.append(own)
            else:
                still.append(f"{stem} {own[0]:.13g}")
        self._still, self._parts = "\n".join(still), np.array(moving)
        noisy = [bool(_SENSOR.search(stem.partition("{")[0])) for stem in self._stems]
        self._noise = np.where(noisy, _NOISE * np.abs(self._parts[:, 0]), 0.0)

    def _named(self, labels: dict[str, str], key: tuple[str, int] | None) -> dict[str, str]:
        named = labels | {"cluster": CLUSTER_NAME, "node": self.name}
        if "uuid" in named:
            named["uuid"] = named["uuid"].replace("GPU-00000000", f"GPU-{self._number:08x}")
        job = self._job
        if job is None or key is None or labels.get("job_id") != JOB:
            return named
        first = job.nodes.index(self.name) * GPUS
        of_job = {
            "job_id": key[0], "attempt": str(key[1]), "world_size": str(job.world_size),
            "project": job.project, "queue": job.queue, "class": job.job_class,
        }  # fmt: skip
        named |= {name: value for name, value in of_job.items() if name in named}
        if "rank" in named:
            ranks = [first + int(rank) for rank in named["rank"].split(",")]
            of_rank = {"rank": ",".join(map(str, ranks)), "dp": str(ranks[0])}
            of_rank["pp"] = job.stage_of(ranks[0])
            named |= {name: value for name, value in of_rank.items() if name in named}
        return named

    def _own_parts(
        self, name: str, labels: dict[str, str], parts: Values, key: tuple[str, int] | None
    ) -> Values:
        """What a series has of a moment on this node, whose job may have a straggler."""
        job = self._job
        if job is None or key is None:
            return parts
        slow = job.slow_rank
        if name == training.PHASE_SECONDS.name:
            phase, rank = labels["phase"], int(labels["rank"])
            jitter = 0.003 * ((rank * 7919) % 97) / 97
            sign = {LATE_PHASE: 1, "sync": -1}.get(phase, 0)
            waits = slow is not None and phase == (LATE_PHASE if rank == slow else "sync")
            return parts + jitter * sign * _PRODUCTIVE + waits * _LOST
        if name == training.GOODPUT_SECONDS.name and slow is not None:
            slow_here = slow in job.ranks_of(self.name)
            shares = {"productive": slow_here, "communication": GPUS - slow_here}
            return parts + shares.get(labels["goodput"], 0) * _LOST
        if name == training.WORLD_RANKS.name:
            return job.world_size * _CONSTANT
        return key[1] * _CONSTANT if name == training.ATTEMPT_NUMBER.name else parts


class _Ledger:
    """The answers of the ledger; its series are those of the time that is served next."""

    name = "ledger"

    def __init__(self, cluster: Cluster) -> None:
        self._times = cluster.times
        self._series = [
            (_stem(labels.pop("__name__"), labels), values)
            for labels, values in ((dict(x.labels), x.values) for x in ledger_series(cluster))
            if labels["__name__"] != "up"
        ]

    def text(self, now: float) -> bytes:
        """The scrape at a time."""
        index = min(int(np.searchsorted(self._times, now)), len(self._times) - 1)
        values = ((stem, values[index]) for stem, values in self._series)
        return "".join(f"{stem} {x:.13g}\n" for stem, x in values if x == x).encode()  # noqa: PLR0124  # no NaN


@contextmanager
def serving(template: Template, cluster: Cluster) -> Iterator[str]:
    """Serves ``/NODE`` of each node and ``/ledger`` while the block lasts; yields HOST:PORT."""
    numbers = range(len(cluster.nodes))
    answers = {each.name: each for each in (Node(template, cluster, x) for x in numbers)}
    pages: dict[str, Node | _Ledger] = {**answers, "ledger": _Ledger(cluster)}
    for page in pages.values():
        page.text(time.time())  # the first answer of each takes longest

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while request := await reader.readline():
                while (await reader.readline()).strip():
                    pass
                page = pages.get(request.split()[1].decode().strip("/"))
                body = page.text(time.time()) if page else b""
                head = _HEAD.format("200 OK" if page else "404 Not Found", len(body))
                writer.write(head.encode() + body)
                await writer.drain()
        writer.close()

    address: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        stop = asyncio.Event()
        async with await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1024) as server:
            bound = "{}:{}".format(*server.sockets[0].getsockname())
            address.set_result((bound, asyncio.get_running_loop(), stop))
            await stop.wait()

    thread = Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    bound, loop, stop = address.result()
    try:
        yield bound
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


def scrape_configs(cluster: Cluster, address: str) -> list[object]:
    """A scrape configuration of agents with a target a node, and that of the ledger."""
    targets = [
        {"targets": [address], "labels": {"__metrics_path__": f"/{node}", "instance": node}}
        for node in cluster.nodes
    ]
    agents = {"job_name": "lockstep-agent", "honor_labels": True, **SCRAPE_LIMITS}
    ledger = {"job_name": "lockstep-ledger", "honor_labels": True, "metrics_path": "/ledger"}
    return [
        {**agents, "static_configs": targets},
        {**ledger, "static_configs": [{"targets": [address]}]},
    ]
