"""Random but plausible histories of several sources, with the truth that they were made from."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from .mishaps import MISHAPS, move_to_slurm, names_its_slurm, reuse_id, uses_number
from .source_stories import NodeStory, NodeWrite, SchedulerStory, SchedulerWrite
from .truth import FINAL, REQUEUED, Feed, Message, TrueAttempt, TrueJob, TrueRun, tick

BASE_SECONDS = 1_795_000_000.0
CLUSTER = "east"
_FEEDS: tuple[tuple[tuple[Feed, ...], int], ...] = (
    (("launcher",), 5), (("slurm", "launcher"), 5), (("kubernetes", "launcher"), 4),
    (("slurm",), 2), (("kubernetes",), 1),
)  # fmt: skip
_CAUSES = {"user_failure": ("exception", "gpu_oom"), "infra_failure": ("xid", "gpu_fault")}
_SHARED = 0.3
_SIZES = (1, 1, 1, 2, 2, 2, 3, 4, 8)


def make_history(seed: int, num_jobs: int = 3, *, has_mishaps: bool = False) -> list[Message]:
    """What several sources tell of several jobs; with mishaps the truth may be unknown."""
    rng = random.Random(seed)
    maker = _Maker(rng=rng, seed=seed)
    by_job: list[list[Message]] = []
    for index in range(num_jobs):
        maker.add_job(index, tick(BASE_SECONDS + rng.uniform(0, 20_000)))
        by_job.append(maker.messages)
        maker.messages = []
    if has_mishaps:
        by_job = _go_wrong(rng, by_job, maker.jobs)
    return _in_order(message for own in by_job for message in own)


def make_two_slurms(seed: int) -> list[Message]:
    """Jobs of two Slurms under one number, which their launchers may use as their own id too."""
    rng = random.Random(f"two {seed}")
    while True:
        maker = _Maker(rng=rng, seed=seed)
        by_job = []
        for index in range(2):
            maker.add_job(index, tick(BASE_SECONDS + rng.uniform(0, 5000)), ("slurm", "launcher"))
            by_job.append(maker.messages)
            maker.messages = []
        number = maker.jobs[0].job_id
        if all(map(names_its_slurm, by_job)):
            alpha = move_to_slurm(by_job[0], "alpha", number, number)
            return _in_order([
                *alpha, *move_to_slurm(by_job[1], "beta", maker.jobs[1].job_id, number),
            ])  # fmt: skip


def _in_order(messages: Iterable[Message]) -> list[Message]:
    return sorted(messages, key=lambda message: message.true_time)


def _go_wrong(
    rng: random.Random, by_job: Sequence[list[Message]], jobs: Sequence[TrueJob]
) -> list[list[Message]]:
    """The messages of each job after up to three mishaps; or two Slurms share a number."""
    first, last = jobs[0], jobs[-1]
    is_shared = "slurm" in first.feeds and "slurm" in last.feeds and rng.random() < 0.5
    if is_shared and not uses_number(by_job[0], first) and not uses_number(by_job[-1], last):
        number = first.job_id
        alpha = move_to_slurm(by_job[0], "alpha", number, number)
        return [alpha, *by_job[1:-1], move_to_slurm(by_job[-1], "beta", last.job_id, number)]
    found = []
    for messages, job in zip(by_job, jobs, strict=True):
        changed = messages
        for mishap in rng.sample(MISHAPS, k=rng.randint(0, 3)):
            changed = mishap(rng, changed)
        if job is not first and job.feeds == first.feeds and rng.random() < 0.5:
            changed = reuse_id(changed, job.job_id, first.job_id, 864_000.0)
        found.append(changed)
    return found


@dataclass(kw_only=True)
class _Maker:
    """Makes jobs one after the other."""

    rng: random.Random
    seed: int
    jobs: list[TrueJob] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    offsets: dict[str, float] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)

    def add_job(self, index: int, submitted: float, feeds: tuple[Feed, ...] | None = None) -> None:
        """Makes a job and all that is told of it; feeds are random where none are given."""
        weights = [weight for _, weight in _FEEDS]
        feeds = feeds or self.rng.choices([each for each, _ in _FEEDS], weights)[0]
        job = TrueJob(
            job_id=f"{4000 + self.seed % 1000}{index}" if "slurm" in feeds else f"j{index}",
            cluster=CLUSTER,
            feeds=feeds,
            words=self._make_words(index),
            submitted=submitted,
        )
        self._make_runs(job, index)
        self.jobs.append(job)
        own_id = self.rng.random() < 0.4 and job.scheduler is not None
        if job.scheduler is not None:
            self._report_as_scheduler(job)
        if job.has_launcher:
            self._report_as_nodes(job, index, own_id=own_id)

    def _make_words(self, index: int) -> dict[str, Any]:
        rng = self.rng
        words: dict[str, Any] = {
            "name": f"train-{index}",
            "user": rng.choice(["ada", "bob"]),
            "queue": rng.choice(["long", "short"]),
            "project": rng.choice(["vision", "speech"]),
            "job_class": rng.choice(["pretraining", "debug"]),
            "gpu_model": "H100",
        }
        if rng.random() < 0.6:
            words |= {"price_per_gpu_hour": rng.choice([2.0, 3.5])}
            words |= {"currency": rng.choice(["EUR", "USD"])}
        if rng.random() < 0.3:
            words["deadline_time"] = tick(BASE_SECONDS + rng.uniform(10_000, 80_000))
        return words

    def _make_runs(self, job: TrueJob, index: int) -> None:
        rng = self.rng
        num_nodes, gpus = rng.choice(_SIZES), rng.choice([1, 2, 4, 8])
        nodes = [f"n{index}-{number}" for number in range(num_nodes)]
        if random.Random(f"{self.seed} pods {index}").random() < _SHARED:
            # Two launchers on each node, such as pods of one job.
            nodes = [f"n{index}-{number // 2}{'/2' * (number % 2)}" for number in range(num_nodes)]
        job.words = {**job.words, "num_nodes": num_nodes, "num_gpus": num_nodes * gpus}
        num_runs = rng.choices([0, 1, 2, 3, 5], [1, 10, 6, 3, 1])[0]
        if num_runs == 0 and job.scheduler is None:
            num_runs = 1
        begin, attempt = tick(job.submitted + rng.uniform(1, 5000)), 0
        for number in range(num_runs):
            is_last = number == num_runs - 1
            run = self._make_run(begin, attempt, nodes, gpus, is_last=is_last)
            job.runs.append(run)
            attempt = run.attempts[-1].number + 1
            begin = tick(run.end + rng.choice([6.0, rng.uniform(6, 900), rng.uniform(6, 9000)]))
            if rng.random() < 0.4:
                nodes = [*nodes[1:], f"n{index}-{number + 10}"]
        if job.scheduler is not None and (not job.runs or rng.random() < 0.1):
            job.in_queue = rng.choice(["waits", "cancelled"])
            if job.runs:
                job.runs[-1].ending = "preempted"

    def _make_run(
        self, begin: float, number: int, nodes: list[str], gpus: int, *, is_last: bool
    ) -> TrueRun:
        rng, attempts = self.rng, []
        start = begin
        for offset in range(rng.choices([1, 2, 3], [8, 2, 1])[0]):
            end = tick(start + rng.choice([rng.uniform(30, 300), rng.uniform(300, 7200)]))
            attempts.append(TrueAttempt(number=number + offset, begin=start, end=end))
            start = tick(end + rng.uniform(4, 60))
        ending = rng.choice(FINAL if is_last else REQUEUED)
        return TrueRun(
            begin=begin,
            end=tick(attempts[-1].end + rng.uniform(2.5, 8)),
            nodes=list(nodes),
            gpus_per_node=gpus,
            ending=ending,
            attempts=attempts,
            cause_node=rng.choice(nodes),
            cause=rng.choice(_CAUSES.get(ending, ("",))),
        )

    def _report_as_scheduler(self, job: TrueJob) -> None:
        is_slurm = job.scheduler == "slurm"
        story = SchedulerStory(
            rng=self.rng,
            job=job,
            write=self._scheduler_writer(job.job_id),
            is_slurm=is_slurm,
            keeps_ends=self.rng.random() < 0.6,
            aliases=(f"slurm:alpha:{job.job_id}",) if is_slurm else (f"kubernetes:{job.job_id}",),
            states_gpus=self.rng.random() < 0.85,
        )
        story.report_all()

    def _report_as_nodes(self, job: TrueJob, index: int, *, own_id: bool) -> None:
        """Tells all runs; with ids of the launchers' own each run has another."""
        step = 0
        for number, run in enumerate(job.runs):
            job_id = f"2026-{index}-{number}" if own_id else job.job_id
            words = dict(job.words) if job.scheduler is None else self._blur(job.words)
            if own_id:
                scheme = "slurm:alpha" if job.scheduler == "slurm" else "kubernetes"
                words["aliases"] = [f"{scheme}:{job.job_id}"]
            story = NodeStory(
                rng=self.rng,
                job=job,
                run=run,
                write=self._writer(job_id),
                fields=words,
                last_step=step,
                restarts_launcher=job.scheduler is not None and self.rng.random() < 0.3,
                always_states_start=own_id or job.scheduler is None,
            )
            step = story.report_all()
            if run.ending == "xid_elsewhere":
                self._report_incident(job_id, run)

    def _blur(self, words: Mapping[str, Any]) -> dict[str, Any]:
        """Words of a launcher, which knows less than its scheduler, or something else."""
        names = ("name", "queue", "num_nodes", "user", "project")
        stated = {name: words[name] for name in names if self.rng.random() < 0.4}
        if self.rng.random() < 0.15:
            stated["queue"] = "elsewhere"
        return stated

    def _scheduler_writer(self, job_id: str) -> SchedulerWrite:
        def write(time: float, kind: str, attempt: int, fields: Mapping[str, Any]) -> None:
            event = {"kind": kind, "job_id": job_id, "attempt": attempt, "fields": dict(fields)}
            self._add("scheduler", time, 0.0, {**event, "node": ""})

        return write

    def _writer(self, job_id: str) -> NodeWrite:
        def write(
            node: str, time: float, kind: str, attempt: int, fields: Mapping[str, Any]
        ) -> None:
            event = {"kind": kind, "job_id": job_id, "attempt": attempt, "fields": dict(fields)}
            node, _, launcher = node.partition("/")
            origin = {"node": node, "owner": 1001, **({"launcher": launcher} if launcher else {})}
            self._add(node, time, self._offset(node), {**event, **origin})

        return write

    def _report_incident(self, job_id: str, run: TrueRun) -> None:
        time = tick(max(run.begin + 5, run.attempts[-1].end - self.rng.uniform(1, 1200)))
        fields = {"sign": "xid", "detail": "79 GPU has fallen off the bus"}
        self._writer(job_id)(run.cause_node, time, "node_event", run.attempts[-1].number, fields)

    def _offset(self, node: str) -> float:
        rng = self.rng
        if node not in self.offsets:
            self.offsets[node] = tick(
                rng.choice([0.0, 0.0, rng.uniform(-1.5, 1.5), rng.uniform(-600, 600)])
            )
        return self.offsets[node]

    def _add(self, sender: str, time: float, offset: float, event: Mapping[str, Any]) -> None:
        origin = {"version": 1, "cluster": CLUSTER, "id": f"{self.seed}-{next(self.numbers)}"}
        stated = {**origin, **event, "time": time + offset}
        message = Message(sender=sender, clock_offset=offset, true_time=time, event=stated)
        self.messages.append(message)
