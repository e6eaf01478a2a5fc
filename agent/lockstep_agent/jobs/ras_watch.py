"""Jobs seen through NCCL's status socket: in a thread of its own, since an answer takes seconds.

One process of a job is asked, on the node of its lowest rank, and every half minute at most; never
while a rank page of it tells of progress, or before its first step. What a user's socket says is
of that user's processes: an answer belongs to the job of those of its pids that run here.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from lockstep_agent.collector import Reading
from lockstep_agent.jobs.page_store import PageStore
from lockstep_agent.jobs.watched_jobs import FollowedJob, Key, Watch, WatchedJob, one_a_rank
from lockstep_agent.sources.nccl_processes import Endpoint, NcclProcess, NcclProcesses
from lockstep_agent.sources.pods import PodNames
from lockstep_agent.sources.ras_socket import ask
from lockstep_catalogue import agent
from lockstep_catalogue.vocabulary import ENDED_PHASES
from lockstep_outcomes.progress.launches import LEAST_POLLS, LaunchHistory
from lockstep_records.nccl.ras_answer import Answer, LargeAnswerError, RasError

POLL_SECONDS = 30.0
_TURN_SECONDS = 15.0
"""Of a run that a user's sockets have; those that are left come first in the next."""
_MAX_ENDPOINTS = 16
"""Sockets of a user that are asked in a run."""
_MAX_RANKS = 32_768
"""In answers that are kept, of all communicators: about 20 MB. Users share them."""
_STOPPED_SECONDS = 60.0
"""Of a rank page without progress, from which on its job is asked."""
_RECOVERED_STOPS = 2.0
"""A stop counts once it has lasted this many times the longest that the job came out of."""
_STALE_SECONDS = 120.0
_MAX_DOUBLINGS = 5


@dataclass(slots=True, kw_only=True)
class _Job(FollowedJob[NcclProcess]):
    history: LaunchHistory = field(default_factory=LaunchHistory)
    longest_stop_seconds: float = 0.0
    answered_seconds: float = 0.0
    answering: frozenset[tuple[int, int]] = frozenset()

    @property
    def num_ranks(self) -> int:
        """Ranks of its newest answer, in all communicators."""
        answer = self.history.last
        return sum(1 + len(each.members) for each in answer.communicators) if answer else 0


@dataclass(slots=True)
class _Pages:
    """What rank pages tell, by pid: who moves or has not taken a step yet."""

    moving: set[int] = field(default_factory=set)
    before_steps: set[int] = field(default_factory=set)


class RasWatch(Watch[NcclProcess, _Job]):
    """Looks for jobs, asks and judges.

    Args:
        moving: pids of processes that others see progress.

    Attributes:
        outcomes: how often an endpoint was asked, by what came of it.
    """

    name, poll_seconds, of_job = "ras", POLL_SECONDS, _Job

    def __init__(
        self,
        pages: PageStore,
        processes: NcclProcesses,
        pod_names: PodNames,
        timeout_seconds: float,
        *,
        moving: Callable[[], Collection[int]] = tuple,
        ask_process: Callable[..., bytes] = ask,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(pages, processes, pod_names, timeout_seconds, wall_clock=wall_clock)
        self._moving, self._ask = moving, ask_process
        self._as_text: set[Endpoint] = set()
        self._last_asks: dict[Endpoint, float] = {}
        self._failures: dict[Endpoint, tuple[int, float]] = {}
        self.outcomes = Counter[str]()

    def _learn(self, now: float) -> None:
        """Asks the endpoints that may be asked."""
        pages = self._read_pages()
        by_endpoint: dict[Endpoint, list[NcclProcess]] = {}
        for process in (each for job in self.followed.values() for each in job.processes):
            by_endpoint.setdefault(process.endpoint, []).append(process)
        by_user: dict[int, list[Endpoint]] = {}
        for endpoint in by_endpoint:
            by_user.setdefault(endpoint.user, []).append(endpoint)
        for endpoints in by_user.values():
            end = time.monotonic() + _TURN_SECONDS
            endpoints.sort(key=lambda each: self._last_asks.get(each, 0.0))
            for endpoint in endpoints[:_MAX_ENDPOINTS]:
                is_pausing = now < self._failures.get(endpoint, (0, 0.0))[1]
                may_ask = not is_pausing and _may_be_asked(by_endpoint[endpoint], pages)
                if may_ask and time.monotonic() < end:
                    self._poll(endpoint, by_endpoint[endpoint], _MAX_RANKS // len(by_user))
        # Endpoints of processes that have ended are of nobody.
        self._last_asks = {
            each: self._last_asks[each] for each in self._last_asks.keys() & by_endpoint.keys()
        }

    def _read_pages(self) -> _Pages:
        found = _Pages(moving=set(self._moving()))
        now_ns = time.monotonic_ns()
        for job in self._pages.jobs():
            for page in job.newest_pages():
                process = job.process(page)
                if process is None or process.pid is None or page.phase in ENDED_PHASES:
                    continue
                idle_seconds = (now_ns - page.progress_ns) / 1e9
                if page.state["step"] is None:
                    found.before_steps.add(process.pid)
                elif idle_seconds < _STOPPED_SECONDS:
                    found.moving.add(process.pid)
        return found

    def readings(self) -> Iterator[Reading]:
        """What came of the questions."""
        for outcome in agent.RAS_OUTCOME.values:
            yield Reading(agent.RAS_QUESTIONS, (outcome,), self.outcomes[outcome])

    def _poll(self, endpoint: Endpoint, processes: list[NcclProcess], max_ranks: int) -> None:
        from lockstep_records.nccl.ras import read_answers  # noqa: PLC0415  # msgspec loads where a socket is asked

        answers, reason, outcome = tuple[Answer, ...](), "", "answered"
        process = min(processes, key=lambda each: (each.rank is None, each.rank or 0, each.pid))
        try:
            self._last_asks[endpoint] = time.monotonic()
            data = self._ask(process, self._processes.procfs, as_text=endpoint in self._as_text)
            answers = read_answers(data, max_ranks)[-1:]
        except LargeAnswerError as error:
            outcome, reason = "too_long", str(error)
            self._as_text.add(endpoint)
        except RasError as error:
            outcome, reason = "unreadable", str(error)
        except OSError as error:
            outcome, reason = "silent", str(error)
        self.outcomes[outcome] += 1
        if outcome == "answered":
            self._failures.pop(endpoint, None)
        else:  # each failure doubles the pause: whoever keeps silent holds up no other user
            self._log_once(f"user={endpoint.user} port={endpoint.port} reason={reason!r}")
            count = self._failures.get(endpoint, (0, 0.0))[0] + 1
            pause_seconds = POLL_SECONDS * 2 ** min(count, _MAX_DOUBLINGS)
            self._failures[endpoint] = count, self._clock() + pause_seconds
        for answer in answers:
            self._ingest(answer, processes)
            self._forget_most(endpoint.user, max_ranks)

    def _forget_most(self, user: int, max_ranks: int) -> None:
        """Drops answers of a user's jobs, the oldest first, until the rest is in its share."""
        jobs = [job for (owner, _), job in self.followed.items() if owner == user and job.num_ranks]
        for job in sorted(jobs, key=lambda each: each.answered_seconds):
            if sum(each.num_ranks for each in jobs) > max_ranks:
                job.history, job.longest_stop_seconds = LaunchHistory(), 0.0

    def _ingest(self, answer: Answer, processes: list[NcclProcess]) -> None:
        """Gives an answer to the job of its processes: two jobs of a user answer in turns."""
        peers = _peers_of(answer)
        jobs = Counter(each.job_id for each in processes if _is_in(each, peers))
        if not jobs and not answer.is_text:
            return
        names = {each.job_id for each in processes}
        if not jobs and len(names) > 1:  # a text in which nothing differs names no process
            return
        job_id = jobs.most_common(1)[0][0] if jobs else next(iter(names))
        job = self.followed.get((processes[0].endpoint.user, job_id))
        if job is None:
            return
        own = frozenset((each.pid, each.start_ticks) for each in processes if each.job_id == job_id)
        if job.answering and not own & job.answering:  # started again under its id
            job.history, job.longest_stop_seconds = LaunchHistory(), 0.0
        now, before, newest = self._clock(), job.history.moved_seconds, job.answered_seconds
        job.answering, job.answered_seconds = own, now
        job.history.ingest(answer, now)
        # A stop shows in two answers; where each has moved there was none to speak of.
        if before is not None and before < newest and job.history.moved_seconds == now:
            job.longest_stop_seconds = max(job.longest_stop_seconds, now - before)

    def _view(self, key: Key, job: _Job, ids: Mapping[int, str], now: float) -> WatchedJob:
        has_pages = any(each.pid in ids for each in job.processes)
        # That they stand is the pages' word; here it is only asked for whom they wait.
        limit = 0.0
        if not has_pages:
            limit = max(self._timeout_seconds, _RECOVERED_STOPS * job.longest_stop_seconds)
        finding = None
        # Nothing of old answers is known to be so now.
        if job.history.num_polls and now - job.answered_seconds < _STALE_SECONDS:
            finding = job.history.finding(LEAST_POLLS, limit)
            if finding.kind == "hang" and not self._timeout_seconds:
                finding = replace(finding, kind="suspect", why="stops are not judged here")
        return self._seen(
            *(key, job, ids, one_a_rank(_ranks_of(job.processes, job.history.last))),
            finding=finding,
            limit_seconds=limit,
            polls=job.history.num_polls,
            answered_seconds=job.answered_seconds,
            moved_seconds=job.history.moved_seconds,
        )


def _may_be_asked(processes: list[NcclProcess], pages: _Pages) -> bool:
    """Whether nobody tells of progress, or it has stopped, and every job is past its first step.

    Of a job of several nodes its lowest rank's agent asks, for one answer is of all.
    """
    pids = {each.pid for each in processes}
    if pids & pages.before_steps:
        return False
    moving = {each.job_id for each in processes if each.pid in pages.moving}
    ranks: dict[str, list[int | None]] = {}
    for each in processes:
        if each.job_id not in moving:
            ranks.setdefault(each.job_id, []).append(each.rank)
    return any(None in numbers or 0 in numbers for numbers in ranks.values())


def _peers_of(answer: Answer) -> dict[tuple[str, int], int]:
    """Hosts and pids that an answer names, each with its rank in the largest communicator."""
    by_size = sorted(answer.communicators, key=lambda each: each.size)
    return {
        (each.process.host, each.process.pid): each.rank
        for communicator in by_size
        for each in communicator.members
    }


def _is_in(process: NcclProcess, peers: Mapping[tuple[str, int], int]) -> bool:
    return any((host, process.inner_pid) in peers for host in (*process.addresses, ""))


def _ranks_of(processes: list[NcclProcess], answer: Answer | None) -> Iterator[NcclProcess]:
    """The processes that an answer names, each with its rank."""
    peers = _peers_of(answer) if answer else {}
    for each in [each for each in processes if _is_in(each, peers)] or processes:
        keys = ((host, each.inner_pid) for host in each.addresses)
        rank = next((peers[key] for key in keys if key in peers), None)
        yield replace(each, rank=rank if each.rank is None else each.rank)
