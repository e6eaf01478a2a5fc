"""Makes jobs by their clocks: ranks that are stopped from outside, or whose loader fetches ahead.

``SyntheticJob`` draws each step by itself. Here a stop falls wherever the clock says, into any
phase, and what loader workers have fetched ahead is used up first.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_reports.recording.steps import Member, Steps

Array = NDArray[np.float64]
_SHARES = {"data": 0.03, "forward": 0.3, "backward": 0.5, "optimizer": 0.06, "other": 0.01}
_CHANCES = np.array(list(_SHARES.values())) / sum(_SHARES.values())
_BEFORE_SYNC, _AFTER_SYNC = ("data", "forward", "backward"), ("optimizer", "other")
_MEAN_PAUSE_STEPS = 1.15
STOP_PERIOD_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class TimedJob:
    """A job of which one rank turns slow.

    Attributes:
        kind: of the fault: ``phase`` (longer in each step), ``sparse`` (in each ``every``-th),
            ``stopped`` (the process stands still for a share of each 0.2 s), ``fetch`` (workers of
            the loader take longer for a batch) or ``healthy``.
        share: what the fault takes on average, as a share of the step.
        phase: of the kinds ``phase`` and ``sparse``.
        from_step: step at whose begin the fault begins.
        until_step: step at whose begin it ends.
        transfer_share: what collectives take besides waits, as a share of the step.
        jitter: deviation of a phase's logarithm.
        pauses: share of the steps of any rank in which something else has its core for a third of a
            step to two steps.
        sleeps: share of the steps of any rank in which some phase sleeps for as long, as on a disk.
        workers: of each rank's loader; each has two batches in the making or ready.
    """

    kind: str
    share: float = 0.2
    phase: str = "forward"
    every: int = 10
    rank: int = 1
    ranks: int = 4
    num_steps: int = 600
    step_seconds: float = 0.1
    from_step: int = 200
    until_step: int = 1 << 40
    transfer_share: float = 0.1
    jitter: float = 0.03
    pauses: float = 0.0
    sleeps: float = 0.0
    workers: int = 2
    seed: int = 0

    def steps(self) -> Steps:
        """The job as the reader would give it, with its waits for a core and for anything else."""
        draw = np.random.default_rng(self.seed)
        shape = (self.ranks, self.num_steps)
        work = {
            name: share * self.step_seconds * draw.lognormal(0, self.jitter, shape)
            for name, share in _SHARES.items()
        }
        is_paused = draw.random(shape) < self.pauses
        queued = is_paused * draw.uniform(0.3, 2.0, shape) * self.step_seconds
        work["backward"] += queued
        slept = self._sleep(work, draw)
        self._lengthen(work)
        phases, ends, stopped = self._run(work)
        own = np.sum([phases[name] for name in _SHARES], axis=0)
        arrivals = ends - phases["sync"]
        return Steps(
            job_id="timed",
            attempt=0,
            world_size=self.ranks,
            members=tuple(
                Member(
                    rank=rank,
                    node="node-0",
                    loader_workers=self.workers,
                    batches_ahead=2 * self.workers,
                )
                for rank in range(self.ranks)
            ),
            numbers=np.arange(self.num_steps),
            seconds=own + phases["sync"],
            phases=phases,
            start=arrivals - np.sum([phases[name] for name in _BEFORE_SYNC], axis=0),
            first_arrival=arrivals - phases["backward"] / 2,
            last_arrival=arrivals,
            run_queue=queued,
            blocked=slept + np.maximum(0.0, own - np.sum(list(work.values()), axis=0) - stopped),
            stopped=stopped,
        )

    def _sleep(self, work: dict[str, Array], draw: np.random.Generator) -> Array:
        """Adds what ranks sleep; returns it, [ranks, steps]."""
        shape = work["data"].shape
        is_asleep = draw.random(shape) < self.sleeps
        slept: Array = is_asleep * draw.uniform(0.3, 2.0, shape) * self.step_seconds
        phases = draw.choice(list(_SHARES), size=shape, p=_CHANCES)
        for name, seconds in work.items():
            work[name] = seconds + np.where(phases == name, slept, 0.0)
        return slept

    def _lengthen(self, work: dict[str, Array]) -> None:
        """Adds what a phase takes longer, by step."""
        until = min(self.until_step, self.num_steps)
        if self.kind == "phase":
            work[self.phase][self.rank, self.from_step : until] += self.share * self.step_seconds
        if self.kind == "sparse":
            seconds = self.every * self.share * self.step_seconds
            work[self.phase][self.rank, self.from_step : until : self.every] += seconds

    def _run(self, work: dict[str, Array]) -> tuple[dict[str, Array], Array, Array]:
        """Seconds by phase, the ends of collectives by the clock, and stops [ranks, steps]."""
        step_ends = np.zeros(self.num_steps)
        phases = {name: np.zeros_like(work["data"]) for name in STEP_PHASES}
        ends = np.zeros_like(work["data"])
        clocks, loader = [0.0] * self.ranks, _Loader(self.workers, self.step_seconds)
        begin = end = np.inf
        for step in range(self.num_steps):
            begin = clocks[self.rank] if step == self.from_step else begin
            end = clocks[self.rank] if step == self.until_step else end
            stops = _Stops(begin, end, self.share if self.kind == "stopped" else 0.0)
            loader.slow_from = begin if self.kind == "fetch" else np.inf
            paused = 1 + self.pauses * self.ranks * _MEAN_PAUSE_STEPS
            loader.slow_seconds = self.workers * self.step_seconds * paused * (1 + self.share)
            outside = stops, loader
            arrivals = [
                self._pass(rank, step, _BEFORE_SYNC, Passing(work, clocks, phases, outside))
                for rank in range(self.ranks)
            ]
            # Nobody has the sum before the stopped process has sent its part of it.
            done = stops.end_of(max(arrivals), self.transfer_share * self.step_seconds)
            for rank, arrival in enumerate(arrivals):
                phases["sync"][rank, step], ends[rank, step] = done - arrival, done
                clocks[rank] = done
                self._pass(rank, step, _AFTER_SYNC, Passing(work, clocks, phases, outside))
            step_ends[step] = clocks[self.rank]
        stopped = np.zeros_like(ends)
        stopped[self.rank] = stops.by_step(step_ends)
        return phases, ends, stopped

    def _pass(self, rank: int, step: int, names: tuple[str, ...], at: "Passing") -> float:
        """Takes a rank through some phases of a step; returns its clock."""
        stops, loader = at.outside
        for name in names:
            before, needed = at.clocks[rank], float(at.work[name][rank, step])
            if rank == self.rank:
                ready = loader.next_ready(before) if name == "data" else before
                at.clocks[rank] = stops.end_of(max(before, ready), needed)
            else:
                at.clocks[rank] = before + needed
            at.phases[name][rank, step] = at.clocks[rank] - before
        return at.clocks[rank]


class Passing(NamedTuple):
    """What a rank needs to pass through a step: seconds of work, clocks, and where time goes."""

    work: dict[str, Array]
    clocks: list[float]
    phases: dict[str, Array]
    outside: tuple["_Stops", "_Loader"]


@dataclass
class _Stops:
    """A process that stands still for a share of each period."""

    begin: float
    end: float
    share: float

    def by_step(self, step_ends: Array) -> Array:
        """Seconds of stops in each step, at its ends by the clock [steps]."""
        seconds = np.zeros_like(step_ends)
        stop = self.share * STOP_PERIOD_SECONDS
        if stop and np.isfinite(self.begin):
            last = min(self.end, step_ends[-1]) - stop
            ends = np.arange(self.begin, last, STOP_PERIOD_SECONDS) + stop
            np.add.at(seconds, np.searchsorted(step_ends, ends - 1e-9), stop)
        return seconds

    def end_of(self, now: float, seconds: float) -> float:
        """When work that begins now is done."""
        while self.share and seconds >= 0:
            if now >= self.end or now + seconds < self.begin:
                break
            now, seconds = max(now, self.begin), seconds - max(0.0, self.begin - now)
            since = (now - self.begin) % STOP_PERIOD_SECONDS
            stop = self.share * STOP_PERIOD_SECONDS
            if since < stop:
                now += stop - since
                since = stop
            runs = min(seconds, STOP_PERIOD_SECONDS - since)
            if runs >= seconds:
                return now + seconds
            now, seconds = now + runs + 1e-12, seconds - runs
        return now + seconds


class _Loader:
    """Workers that make batches in turn, each two ahead, as torch's DataLoader has them."""

    def __init__(self, workers: int, step_seconds: float) -> None:
        self.slow_from, self.slow_seconds = np.inf, 0.0
        self._usual_seconds = 0.4 * workers * step_seconds
        self._free = [-np.inf] * workers
        self._ready: list[float] = []
        self._num_requests = 0
        for _ in range(2 * workers):
            self._ask(-np.inf)  # the loop begins with all of them ready

    def _ask(self, now: float) -> None:
        worker = self._num_requests % len(self._free)
        begin = max(now, self._free[worker])
        begin = begin if np.isfinite(begin) else -self._usual_seconds
        took = self.slow_seconds if begin >= self.slow_from else self._usual_seconds
        self._free[worker] = begin + took
        self._ready.append(begin + took)
        self._num_requests += 1

    def next_ready(self, now: float) -> float:
        """When the next batch is there; asks for another one then."""
        ready = self._ready.pop(0)
        self._ask(max(now, ready))
        return ready
