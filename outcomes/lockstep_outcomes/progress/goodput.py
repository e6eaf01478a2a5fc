"""Goodput of one rank: its wall clock in exclusive states that sum to it to the nanosecond.

Waiting for other ranks, steps done again and hangs are states of their own. Time that no phase
covers is ``unknown`` and is not added to any other state.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lockstep_catalogue import vocabulary
from lockstep_catalogue.labels import OWN_WORK_PHASES, STEP_PHASES
from lockstep_catalogue.vocabulary import GOODPUT_STATES, GoodputState
from lockstep_outcomes.progress import hangs
from lockstep_records.events.event import Event
from lockstep_records.page.reader import Page

HOUR_SECONDS = 3600.0
_DAY_SECONDS = 86_400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class JobGoodput:
    """Allocated GPU time of a job by state; states that are absent are 0."""

    gpu_seconds: Mapping[GoodputState, float]

    @property
    def allocated_gpu_seconds(self) -> float:
        """All states together."""
        return math.fsum(self.gpu_seconds.values())

    @property
    def productive_ratio(self) -> float | None:
        """Share of the allocated time that trained; None without any."""
        allocated = self.allocated_gpu_seconds
        return self.gpu_seconds.get("productive", 0.0) / allocated if allocated else None

    @property
    def ettr_ratio(self) -> float | None:
        """Share of the allocated time that made progress, slow steps included; None without any.

        Communication, waits for data, stragglers and the host, and evaluation are parts of steps
        that are kept; start-up, checkpoints, restores, rework, hangs, recovery and idle time are
        not.
        """
        allocated = self.allocated_gpu_seconds
        moving = math.fsum(self.gpu_seconds.get(state, 0.0) for state in PROGRESS_STATES)
        return moving / allocated if allocated else None


PROGRESS_STATES: tuple[GoodputState, ...] = (
    "productive",
    "data_wait",
    "communication",
    "straggler_wait",
    "host_bound",
    "evaluation",
    "other",
)
"""States in which a job moves on: the R of Meta's ETTR, which counts slow steps as training."""


def sum_goodput(jobs: Sequence[JobGoodput]) -> JobGoodput:
    """Goodput of a cluster, weighted by GPU time."""
    return JobGoodput(
        gpu_seconds={
            state: math.fsum(job.gpu_seconds.get(state, 0.0) for job in jobs)
            for state in GOODPUT_STATES
        }
    )


def job_weighted_ratio(jobs: Iterable[JobGoodput]) -> float | None:
    """Mean of the jobs' productive ratios; None without a job."""
    ratios = [ratio for job in jobs if (ratio := job.productive_ratio) is not None]
    return math.fsum(ratios) / len(ratios) if ratios else None


@dataclass(frozen=True, slots=True)
class GoodputSample:
    """Totals of a job at a moment: seconds since 1970, GPU time that trained, all GPU time."""

    time: float
    productive: float
    allocated: float


def recent_ettr(
    samples: Sequence[GoodputSample], window_seconds: float = HOUR_SECONDS
) -> float | None:
    """ETTR of the last hour, which shows an incident that the cumulative one hides.

    The totals at the begin of the window lie between two samples and are interpolated; a job that
    is younger than the window is judged from its begin. None where nothing was allocated in it.
    """
    if not samples:
        return None
    newest = samples[-1]
    begin = newest.time - window_seconds
    before = [sample for sample in samples if sample.time <= begin]
    after = next((sample for sample in samples if sample.time > begin), newest)
    if before:
        oldest, span = before[-1], after.time - before[-1].time
        share = (begin - oldest.time) / span if span > 0 else 0.0
        productive = oldest.productive + share * (after.productive - oldest.productive)
        allocated = oldest.allocated + share * (after.allocated - oldest.allocated)
    else:
        productive = allocated = 0.0
    spent = newest.allocated - allocated
    return (newest.productive - productive) / spent if spent > 0 else None


def failures_per_node_day(num_failures: float, node_seconds: float) -> float | None:
    """Measured rate of failures; None without any observed time."""
    return num_failures * _DAY_SECONDS / node_seconds if node_seconds > 0 else None


def expected_ettr(
    *,
    num_nodes: float,
    failures_per_node_day: float,
    restart_seconds: float,
    interval_seconds: float,
    save_seconds: float,
) -> float:
    """ETTR that a job can expect, from 0 to 1, without the time in the queue.

    E[ETTR] = (1 - N r (u + dt / 2)) / (1 + w / dt): a failure costs the restart and half a
    checkpoint interval, and a checkpoint stops training for its blocking write. The first-order
    form of the paper: it holds while N r (u + dt / 2) is well below 1.

    Args:
        num_nodes: N.
        failures_per_node_day: r.
        restart_seconds: u, from the failure to the first step again.
        interval_seconds: dt, training between two checkpoints.
        save_seconds: w, for which a checkpoint stops the steps.
    """
    rate = num_nodes * failures_per_node_day / _DAY_SECONDS
    lost_ratio = rate * (restart_seconds + interval_seconds / 2)
    return max(0.0, 1 - lost_ratio) / (1 + save_seconds / interval_seconds)


def best_interval_seconds(
    *, num_nodes: float, failures_per_node_day: float, save_seconds: float
) -> float | None:
    """The checkpoint interval with the highest expected ETTR: sqrt(2 w / (N r)) (Young, Daly).

    None when nothing fails or a save costs nothing: no optimum exists then.
    """
    rate = num_nodes * failures_per_node_day / _DAY_SECONDS
    return math.sqrt(2 * save_seconds / rate) if rate > 0 and save_seconds > 0 else None


# Stragglers are known only by comparing ranks; recovery and idleness lie outside of any page.
_UNPAGED_STATES = frozenset({"straggler_wait", "recovery", "idle", "held_after_end"})
PAGE_STATES: tuple[vocabulary.GoodputState, ...] = tuple(
    state for state in vocabulary.GOODPUT_STATES if state not in _UNPAGED_STATES
)
"""The states that one rank's page can tell, in the order of the vocabulary."""

# A checkpoint or an evaluation is not lost work, also in a step that an earlier attempt completed.
# Waiting for a loader is a state of its own already, whoever waits.
HOST_BOUND_PHASES = tuple(phase for phase in OWN_WORK_PHASES if phase != "data")
"""Phases in which a device that waits for the host counts as ``host_bound``."""
REWORK_PHASES = tuple(phase for phase in STEP_PHASES if phase not in vocabulary.PAUSE_PHASES)
# A page may be hostile: a longer duration than a century is taken for none.
_MOST_SECONDS = 3.2e9


def totals_end_ns(page: Page) -> int:
    """Monotonic time up to which the page's totals reach: its start plus all phase seconds."""
    counted = sum(_nanoseconds(seconds) for seconds in page.state["phase_seconds"].values())
    return int(page.identity["start_monotonic_ns"]) + counted


def goodput_ns(page: Page, until_ns: int | None = None) -> Mapping[vocabulary.GoodputState, int]:
    """Nanoseconds of a rank by goodput state: all of ``PAGE_STATES``, in their order.

    Args:
        page: of one rank and attempt.
        until_ns: monotonic time at which the rank's clock stops: now, or its end; the time of the
            last heartbeat when that is later. Left out, the states reach as far as the page's
            totals, and never fall from one reading to the next.

    Returns:
        States that sum to the time from the start of the process to ``until_ns`` exactly. The time
        since the last heartbeat counts as a hang once it is longer than ``hang_limit_seconds``.
    """
    spent = dict.fromkeys(PAGE_STATES, 0)
    spent["startup"] = _nanoseconds(page.periodic["process_seconds"] or 0.0)
    for phase, seconds in page.state["phase_seconds"].items():
        spent[_state_of(phase)] += _nanoseconds(seconds)
    if page.is_of_plugin:
        spent["productive"], spent["other"] = spent["other"], 0
    losses: tuple[tuple[vocabulary.GoodputState, tuple[str, ...]], ...]
    losses = (("hang", STEP_PHASES), ("rework", REWORK_PHASES), ("host_bound", HOST_BOUND_PHASES))
    for loss, phases in losses:
        lost_seconds = page.periodic[f"{loss}_seconds"]
        for phase in phases:
            state = _state_of(phase)
            # Never more than the state holds: the two totals are written at different moments.
            moved = min(spent[state], _nanoseconds(lost_seconds[phase]))
            spent[state] -= moved
            spent[loss] += moved
    if until_ns is not None:
        _add_open_time(spent, page, until_ns)
    return spent


def _add_open_time(spent: dict[vocabulary.GoodputState, int], page: Page, until_ns: int) -> None:
    """Adds what the totals do not reach: the time up to the last heartbeat, and after it."""
    totals_end = totals_end_ns(page)
    heartbeat_ns = max(totals_end, page.progress_ns)
    spent["unknown"] += heartbeat_ns - totals_end
    idle_ns = max(0, until_ns - heartbeat_ns)
    buckets = tuple(page.state["step_buckets"].values())
    timeouts = hangs.HangTimeouts().apply_page(page)
    limit = hangs.hang_limit_seconds(
        hangs.median_step_seconds(buckets, page.state["step_seconds_sum"]),
        # Off means that nobody is paged; the account of the time needs a limit all the same.
        timeouts.step_seconds or hangs.HANG_TIMEOUT_SECONDS,
        timeouts.pause_seconds or hangs.PAUSE_TIMEOUT_SECONDS,
        is_pause=page.phase in vocabulary.PAUSE_PHASES or not page.state["steps"],
    )
    is_hang = page.phase not in vocabulary.ENDED_PHASES and idle_ns / 1e9 > limit
    spent["hang" if is_hang else _state_of(page.phase)] += idle_ns


def _state_of(phase: str) -> vocabulary.GoodputState:
    return vocabulary.PHASE_STATES.get(phase, "unknown")


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9) if 0 <= seconds < _MOST_SECONDS else 0


_STATES: dict[str, GoodputState] = {state: state for state in GOODPUT_STATES}


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeJob:
    """Where the allocated time of a job went.

    Attributes:
        goodput: allocated GPU seconds by state; of ranks, where a job has no GPUs.
    """

    goodput: JobGoodput
    num_attempts: int
    elapsed_seconds: float


@dataclass(kw_only=True, slots=True)
class _Attempt:
    begin: float | None = None
    end: float | None = None
    states: dict[str, dict[str, float]] | None = None
    num_ranks: dict[str, int] | None = None


def whole_job(events: Iterable[Event]) -> WholeJob | None:
    """The goodput of a job; None where no launcher reported any.

    Each attempt's launcher reports the seconds of its ranks by state, from the launch on. Between
    the end of an attempt and the begin of the next the allocation recovers. Between two launches
    it is not the job's, so that nothing counts.
    """
    attempts: dict[int, _Attempt] = {}
    launches: set[int] = set()
    launched = False
    for event in sorted(events, key=lambda each: each.time):
        if event.kind == "job_started":
            launched = True
            continue
        attempt = attempts.setdefault(event.attempt, _Attempt())
        if event.kind == "attempt_started":
            attempt.begin = event.time if attempt.begin is None else attempt.begin
            if launched:
                launches.add(event.attempt)
            launched = False
        elif event.kind == "attempt_ended":
            attempt.end = event.time
        elif event.kind == "goodput":
            _note(attempt, event)
    return _joined(attempts, launches)


def _note(attempt: _Attempt, event: Event) -> None:
    """Takes the newest word of a node about an attempt."""
    seconds, num_ranks = event.fields.get("rank_seconds"), event.fields.get("num_ranks")
    if not isinstance(seconds, dict) or not isinstance(num_ranks, int):
        return
    node = event.node or ""
    attempt.states = (attempt.states or {}) | {node: seconds}
    attempt.num_ranks = (attempt.num_ranks or {}) | {node: num_ranks}
    attempt.end = attempt.end or event.time


def _joined(attempts: dict[int, _Attempt], launches: set[int]) -> WholeJob | None:
    totals: dict[GoodputState, float] = {}
    elapsed = 0.0
    counted = [number for number in sorted(attempts) if attempts[number].states]
    for number in counted:
        attempt = attempts[number]
        for states in (attempt.states or {}).values():
            for name, seconds in states.items():
                state = _STATES.get(name, "unknown")
                totals[state] = totals.get(state, 0.0) + float(seconds)
        gpus = sum((attempt.num_ranks or {}).values())
        total = sum(sum(map(float, states.values())) for states in (attempt.states or {}).values())
        elapsed += total / gpus if gpus else 0.0
        before = attempts.get(number - 1)
        if before is None or number in launches or before.end is None or attempt.begin is None:
            continue
        recovery = max(0.0, attempt.begin - before.end)
        totals["recovery"] = totals.get("recovery", 0.0) + recovery * gpus
        elapsed += recovery
    if not counted:
        return None
    return WholeJob(
        goodput=JobGoodput(gpu_seconds=totals), num_attempts=len(counted), elapsed_seconds=elapsed
    )
