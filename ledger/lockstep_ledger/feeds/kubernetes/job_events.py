"""Events of a job from its object and pods, with stable ids."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from lockstep_ledger.feeds.kubernetes.objects import Ending, Owned
from lockstep_ledger.feeds.kubernetes.pods import Pod, PodRun, judge_attempt, judge_job
from lockstep_ledger.importers.scheduler_events import REPEAT_SECONDS
from lockstep_records.events.bounds import fit
from lockstep_records.events.event import Event, stable_id

_CONSEQUENCE_SECONDS, _STEP_SECONDS = 30.0, 0.001
# A controller starts a pod anew, or states the end, within seconds.
SILENT_SECONDS = 60.0
HELD_SECONDS = 900.0
"""How often it is said that pods hold GPUs after the end of their job's work."""
_NOT_UPDATED = "Its work has ended, and its object was not updated."
IDLE_SUFFIX = "/idle"
"""Ends the name of the part of a pod's GPUs after the end of its work."""
_BAD = frozenset({"failed", "disrupted", "taken", "unseen"})


@dataclass(slots=True)
class Attempt:
    """A start of a job's pods, up to the next one.

    Attributes:
        opening: name of the run that began it; of the same attempt always the same.
        end: when it failed or was taken back; None where no other attempt follows.
    """

    opening: str
    begin: float
    runs: list[PodRun] = field(default_factory=list)
    end: float | None = None

    @property
    def last_end(self) -> float | None:
        """When its last run ended; None while one runs."""
        ends = [run.end for run in self.runs]
        return None if None in ends else max((end for end in ends if end is not None), default=None)

    def close(self) -> None:
        """Note its end, which is that of its first bad run."""
        bad = [run.end for run in self.runs if run.end is not None and run.fate in _BAD]
        self.end = self.end_before(min(bad, default=self.begin))

    def end_before(self, time: float) -> float:
        """The end of an attempt after which something may begin in the same second.

        Kubernetes' times are whole seconds: an end comes just before the second, so that it is not
        taken for the end of what begins in it; and never before its own begins.
        """
        return max([int(time) - _STEP_SECONDS, *(run.begin for run in self.runs)])


def split_attempts(runs: Iterable[PodRun]) -> list[Attempt]:
    """Attempts in order, the last one without an end.

    A run begins a new attempt where its own containers failed before it, where its pod was created
    after another of the attempt had failed, or where nothing was left that ran. Pods that are added
    or that follow others which succeeded belong to the attempt that there is.
    """
    attempts: list[Attempt] = []
    ordered = sorted(runs, key=lambda each: (each.begin, each.part))
    bad = [run for run in ordered if run.fate in _BAD]
    latest_end = 0.0
    for run in ordered:
        is_gap = latest_end <= run.begin
        if not attempts or (bad and _begins_anew(run, attempts[-1], bad, is_gap=is_gap)):
            if attempts:
                attempts[-1].close()
            attempts.append(Attempt(run.part, run.begin))
        attempts[-1].runs.append(run)
        latest_end = max(latest_end, float("inf") if run.end is None else run.end)
    return attempts


def _begins_anew(run: PodRun, attempt: Attempt, bad: list[PodRun], *, is_gap: bool) -> bool:
    own = {each.part for each in attempt.runs}
    # What fails as an attempt begins, and ran before it, follows from what began it.
    horizon = attempt.begin + _CONSEQUENCE_SECONDS
    for each in bad:
        end = each.end or 0.0
        if each is run or not attempt.begin <= end <= run.begin:
            continue
        if each.part not in own and end <= horizon:
            continue
        is_replaced = each.fate in {"failed", "disrupted"} and run.created >= int(end)
        if is_gap or is_replaced or (each.pod == run.pod and each.fate != "unseen"):
            return True
    return False


def list_unseen(attempts: list[Attempt], restarts: int, uid: str) -> list[PodRun]:
    """Runs without duration for starts that an operator counts and nobody saw, before the last."""
    missing, begin = restarts + 1 - len(attempts), attempts[-1].begin
    times = [begin - _STEP_SECONDS * number for number in range(missing, 0, -1)]
    return [
        PodRun(f"{uid}/restart-{number}", uid, time, time, end=time, fate="failed")
        for number, time in enumerate(times)
    ]


@dataclass(slots=True)
class Job:
    """A submission: the object at the top of the owners of some pods, and these pods.

    Attributes:
        top: the object; None where only its pods are seen, for its kind is forbidden or gone.
        parts: uids of objects below it by which its pods know it.
        runs: of pods that are no longer there, by name of the part.
        has_label: whether that is a label's.
        described: time of the newest description that the ledger has.
        ending: its end, where its object is gone or the feed judges it.
    """

    uid: str
    namespace: str
    name: str
    kind: str
    created: float
    top: Owned | None = None
    workload: Owned | None = None
    parts: set[str] = field(default_factory=set)
    pods: dict[str, Pod] = field(default_factory=dict)
    runs: dict[str, PodRun] = field(default_factory=dict)
    job_id: str = ""
    has_label: bool = False
    described: float = 0.0
    description: dict[str, Any] = field(default_factory=dict)
    sent: set[str] = field(default_factory=set)
    ending: Ending | None = None
    is_taken: bool = False
    is_left_out: bool = False
    is_seeded: bool = False
    is_counted: bool = False

    def all_runs(self) -> list[PodRun]:
        """Runs of its pods that are there, and of those that were."""
        runs = dict(self.runs)
        for pod in self.pods.values():
            runs |= {run.part: run for run in pod.runs.values()}
        return list(runs.values())

    @property
    def stopped(self) -> float | None:
        """When the last of its pods ended and its object did not say so; None while one is open."""
        ends = [run.end for run in self.all_runs()]
        is_open = None in ends or any(
            not pod.is_over and pod.idle_since is None for pod in self.pods.values()
        )
        if self.ending is not None or is_open:
            return None
        return max((end for end in ends if end is not None), default=None)

    def idle_pods(self, now: float) -> Iterator[tuple[str, float, float | None, Pod]]:
        """What holds GPUs a while after the end of its work: part, begin, end and the pod."""
        since = now if self.ending is None else self.ending.time or now
        for pod in self.pods.values():
            if pod.idle_since is not None:
                until = pod.gone if pod.idle_until is None else pod.idle_until
                if (now if until is None else until) - pod.idle_since >= SILENT_SECONDS:
                    yield f"{pod.uid}{IDLE_SUFFIX}", pod.idle_since, until, pod
            elif now - since >= SILENT_SECONDS:
                yield from ((r.part, since, None, pod) for r in pod.runs.values() if r.end is None)

    @property
    def newest_begin(self) -> float | None:
        """When the newest of its pods began that run; None where none does."""
        return max((run.begin for run in self.all_runs() if run.end is None), default=None)

    @property
    def queue(self) -> str:
        """Its queue; empty where it has none."""
        workload, top = self.workload, self.top
        return (workload.queue if workload else "") or (top.queue if top else "")

    @property
    def aliases(self) -> list[str]:
        """Its other names in the ledger."""
        return [f"kubernetes:{uid}" for uid in (self.uid, *sorted(self.parts - {self.uid}))]

    @property
    def is_finished(self) -> bool:
        """Whether its end was handed over."""
        return "end" in self.sent


class EventWriter:
    """Makes the events of jobs."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster

    def new_events(self, job: Job, now: float) -> list[dict[str, Any]]:
        """The events that were not handed over yet, in order; they count as handed over now."""
        attempts = split_attempts(job.all_runs())
        if not job.is_counted and attempts and attempts[-1].last_end is None:
            # As the feed first sees it run; later attempts are seen themselves.
            job.is_counted = True
            restarts = job.top.restarts if job.top is not None else 0
            if unseen := list_unseen(attempts, restarts, job.uid):
                job.runs |= {run.part: run for run in unseen}
                attempts = split_attempts(job.all_runs())
        for attempt in attempts:  # one that was heard of keeps its identity, whoever began with it
            starts = (run.part for run in attempt.runs if f"start {run.part}" in job.sent)
            attempt.opening = next(starts, attempt.opening)
        return [event.document() for event in self._events(job, attempts, now)]

    def _events(self, job: Job, attempts: list[Attempt], now: float) -> Iterator[Event]:
        submitted = _submission(job, attempts)
        if submitted is None:
            return
        yield from self._describe(job, attempts, submitted, now)
        for number, attempt in enumerate(attempts):
            # Sizes are stated by submissions alone, whose newest holds.
            stated = {
                "project": job.namespace, "aliases": job.aliases, "opening": attempt.opening,
            }  # fmt: skip
            yield from self._event(
                job, f"start {attempt.opening}", "job_started", attempt.begin, number, stated
            )
            for run in attempt.runs:
                yield from self._part(job, run, number)
            if attempt.end is not None:
                yield from self._requeue(job, attempt, number, attempt.end, "")
        last = len(attempts) - 1
        is_held = job.top is not None and job.top.held
        if job.ending is None and attempts and is_held and attempts[-1].last_end is not None:
            attempts[-1].close()
            time = attempts[-1].end_before(attempts[-1].last_end)
            yield from self._requeue(job, attempts[-1], last, time, _hold_word(job))
        elif job.stopped is not None and now - job.stopped >= SILENT_SECONDS and attempts:
            yield from self._stop(job, attempts[-1], last, job.stopped)
        if job.ending is not None:
            yield from self._end(job, job.ending, attempts, now)
        yield from self._held(job, attempts, now)

    def _held(self, job: Job, attempts: list[Attempt], now: float) -> Iterator[Event]:
        """What pods hold after the end of the work, said again while they do."""
        last = len(attempts) - 1
        for part, begin, end, pod in job.idle_pods(now) if attempts else ():
            keepers = f" ({', '.join(pod.keepers)})" if pod.keepers else ""
            held = {"part": part, "num_gpus": pod.gpus, "node": pod.node or None,
                    "held_by": f"pod {pod.name}{keepers}"}  # fmt: skip
            times = {} if end else {f"hold {part} {now // HELD_SECONDS:.0f}": now}
            if part.endswith(IDLE_SUFFIX):
                times = {f"take {part}": begin} | times
            for identity, time in times.items():
                yield from self._event(job, identity, "resources_allocated", time, last, held)
            if end is not None:
                over = {"part": part, "fate": "taken"}
                yield from self._event(job, f"give {part}", "resources_released", end, last, over)

    def _describe(
        self, job: Job, attempts: list[Attempt], submitted: float, now: float
    ) -> Iterator[Event]:
        fields = _describe(job, attempts)
        first = f"submit {job.job_id}"
        if first not in job.sent:
            # The id of a label is the job's name, also where another one was heard of before.
            time = submitted - (_STEP_SECONDS if job.has_label else 0.0)
            job.description, job.described = fields, max(job.described, time)
            stated = {**fields, "submitted_as": job.job_id}
            yield from self._event(job, first, "job_submitted", time, 0, stated)
        elif fields != job.description and _is_whole(job, attempts):
            job.description = fields
            newest = max((pod.created for pod in job.pods.values()), default=job.created)
            job.described = max(job.described + _STEP_SECONDS, min(now, newest))
            values = " ".join(map(str, fields.values()))
            yield from self._event(
                job, f"describe {job.job_id} {values}", "job_submitted", job.described, 0, fields
            )
        elif job.newest_begin and now - max(job.described, job.newest_begin) >= REPEAT_SECONDS:
            job.described = now
            yield from self._event(job, f"runs {now:.0f}", "job_submitted", now, 0, fields)

    def _part(self, job: Job, run: PodRun, number: int) -> Iterator[Event]:
        begun: dict[str, Any] = {
            "part": run.part, "num_gpus": run.gpus, "node": run.node or None,
            "nodes": [*filter(None, (run.node, run.host))] or None,
            "pod_created": run.created, "restart": run.restart or None,
        }  # fmt: skip
        take = f"take {run.part}"
        yield from self._event(job, take, "resources_allocated", run.begin, number, begun)
        if run.end is not None:
            over = {"part": run.part, "fate": run.fate}
            give = f"give {run.part}"
            yield from self._event(job, give, "resources_released", run.end, number, over)

    def _requeue(
        self, job: Job, attempt: Attempt, number: int, time: float, word: str
    ) -> Iterator[Event]:
        judged = judge_attempt(attempt.runs, job.pods, word)
        over = {**judged, "goes_on": True}
        yield from self._event(job, f"over {attempt.opening}", "job_finished", time, number, over)
        why = {"reason": word or judged["reason"]}
        yield from self._event(job, f"requeue {attempt.opening}", "job_requeued", time, number, why)

    def _stop(self, job: Job, attempt: Attempt, number: int, time: float) -> Iterator[Event]:
        """The end of an attempt by its pods alone; another may follow."""
        fates = {run.fate for run in attempt.runs}
        has_failed = bool(fates & {"failed", "disrupted"})
        word = "Failed" if has_failed else "Completed" if fates == {"succeeded"} else "Deleted"
        ending = Ending(word, time, _NOT_UPDATED)
        judged = judge_job(ending, attempt.runs, job.pods, has_run=True)
        over, moment = {**judged, "goes_on": True}, attempt.end_before(time)
        yield from self._event(job, f"over {attempt.opening}", "job_finished", moment, number, over)

    def _end(
        self, job: Job, ending: Ending, attempts: list[Attempt], now: float
    ) -> Iterator[Event]:
        runs = attempts[-1].runs if attempts else []
        fields = judge_job(ending, runs, job.pods, has_run=bool(attempts))
        time = _end_time(ending, attempts, now)
        yield from self._event(job, "end", "job_finished", time, max(0, len(attempts) - 1), fields)

    def _event(  # noqa: PLR0917  # what, of which job, when, in which attempt
        self, job: Job, identity: str, kind: str, time: float, number: int, fields: dict[str, Any]
    ) -> Iterator[Event]:
        """The event, once: it counts as handed over now."""
        if identity in job.sent:
            return
        job.sent.add(identity)
        stated = {name: value for name, value in fields.items() if value is not None}
        yield Event(
            kind=kind,
            job_id=job.job_id,
            attempt=number,
            time=time,
            # By uid: a job that gets another id has the same events.
            id=stable_id("kubernetes", self._cluster, job.uid, kind, identity),
            node="",
            cluster=self._cluster,
            fields=fit({**stated, "source": "kubernetes", "object_uid": job.uid}),
        )


def _describe(job: Job, attempts: list[Attempt]) -> dict[str, Any]:
    top, workload = job.top, job.workload
    gpus, nodes = _size(job, attempts)
    pod_class = next((pod.job_class for pod in job.pods.values() if pod.job_class), "")
    users = {pod.user for pod in job.pods.values()}
    classes = ((workload and workload.job_class), (top and top.job_class), pod_class)
    return {
        "name": job.name,
        "uid": users.pop() if len(users) == 1 else None,
        "project": job.namespace,
        "queue": job.queue or None,
        "job_class": next(filter(None, classes), None),
        "num_nodes": nodes or None,
        "num_gpus": gpus if nodes else None,
        "time_limit_seconds": top.time_limit if top else None,
        "object_kind": job.kind,
        "aliases": job.aliases,
    }


def _size(job: Job, attempts: list[Attempt]) -> tuple[int, int]:
    """The most accelerators, and pods with them, that it has at a time in its newest attempt."""
    since = attempts[-1].begin if attempts else 0.0
    edges: list[tuple[float, int, int]] = []
    for pod in job.pods.values():
        ends = [run.end for run in pod.runs.values()]
        end = max((e for e in ends if e is not None), default=pod.gone or pod.created)
        is_open = not pod.is_over
        if not is_open and end < since:
            continue
        edges.append((max(pod.created, since), 1, pod.gpus))
        if not is_open:
            edges.append((max(end, since), -1, -pod.gpus))
    gpus = pods = most_gpus = most_pods = 0
    has_gpus = any(pod.gpus for pod in job.pods.values())
    # An end and a begin of one second are a replacement.
    for _, number, amount in sorted(edges, key=lambda edge: (edge[0], edge[1])):
        gpus, pods = gpus + amount, pods + (number if amount or not has_gpus else 0)
        most_gpus, most_pods = max(most_gpus, gpus), max(most_pods, pods)
    return most_gpus, most_pods


def _is_whole(job: Job, attempts: list[Attempt]) -> bool:
    """Whether its size can be told: of one that has ended only while its last pods are there."""
    if job.ending is None:
        return True
    runs = attempts[-1].runs if attempts else []
    return bool(runs) and not job.is_finished and all(run.pod in job.pods for run in runs)


def _submission(job: Job, attempts: list[Attempt]) -> float | None:
    """When it was submitted; None while its owner holds it, and it has not run."""
    top = job.top
    if top is None or job.queue:
        return job.created
    if top.held and not attempts and job.ending is None and not job.sent:
        return None
    was_held = top.resumed is not None and not any(a.begin < top.resumed for a in attempts)
    return top.resumed if was_held and top.resumed is not None else job.created


def _hold_word(job: Job) -> str:
    evicted = job.workload.evicted if job.workload is not None else None
    return evicted.word if evicted is not None and evicted.word else "Suspended"


def _end_time(ending: Ending, attempts: list[Attempt], now: float) -> float:
    """The end of its last pod where that is over, else what its object states."""
    last = attempts[-1].last_end if attempts else None
    time = ending.time
    if last is not None and (time is None or ending.word == "Completed"):
        time = last
    time = now if time is None else time
    return attempts[-1].end_before(time) if attempts else int(time) - _STEP_SECONDS
