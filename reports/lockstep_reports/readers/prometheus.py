"""Reads a job from a Prometheus over a window: every column is the mean step of a slot of time."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lockstep_catalogue import training
from lockstep_catalogue.labels import (
    ATTEMPT,
    CLUSTER,
    JOB_ID,
    LOCAL_RANK,
    MESH,
    NODE,
    PHASE,
    PROJECT,
    RANK,
    STATE,
    STEP_PHASES,
    UUID,
    WORLD_SIZE,
)
from lockstep_catalogue.metric import Metric
from lockstep_catalogue.promql import LE, Matcher, by, eq, increase, select
from lockstep_catalogue.vocabulary import Outcome
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Flags, Matrix
from lockstep_reports.readers import ReadOptions
from lockstep_reports.readers.prometheus_api import MAX_POINTS, Labels, Prometheus, Series, by_label
from lockstep_reports.recording.recording import Attempt, Recording
from lockstep_reports.recording.steps import DurationHistogram, Member, Steps
from lockstep_reports.wording import duration, plural

KIND = "prometheus"
MAX_CELLS = 1 << 22
_MOST_SLOTS, _SCRAPES_A_SLOT = 400, 3
_DEFAULT_SECONDS = 1800.0
_MOST_SECONDS_LOOKED_AT = 86400.0
_NAMED = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class _Slots:
    """Times at which slots end, in seconds since the epoch; each begins where the last ended."""

    begin: float
    seconds: float
    count: int

    @property
    def last(self) -> float:
        return self.begin + self.seconds * self.count

    def rows(self, found: list[Series], ranks: list[int]) -> Matrix:
        """Values by rank [ranks x slots]; NaN where there is none."""
        values = np.full((len(ranks), self.count), np.nan)
        row = {rank: at for at, rank in enumerate(ranks)}
        for rank, series in by_label(found, RANK.name):
            if rank in row:
                self.put(values[row[rank]], series)
        return values

    def put(self, values: Matrix, series: Series) -> None:
        for at, value in series.points:
            slot = round((at - self.begin) / self.seconds) - 1
            if 0 <= slot < self.count and math.isfinite(value):
                values[slot] = value


def read_url(url: str, options: ReadOptions) -> Recording:
    """The job as the server knows it.

    Raises:
        ValueError: nobody answers, the job is not there, or the window cannot be.
    """
    server = Prometheus(url)
    try:
        return _read(server, *_window(options), options.job_id)
    finally:
        server.close()


def _window(options: ReadOptions) -> tuple[float, float]:
    window, now = options.window, time.time()
    for bound in (window.first, window.last):
        if bound is not None and bound.wall_seconds is None:
            raise ValueError(
                f"a Prometheus is asked by time, and {bound.step} is a step; give --from and --to"
                " as times, such as 2026-01-31T12:00:00 or -15m"
            )
    end = window.last.wall_seconds if window.last else now
    begin = window.first.wall_seconds if window.first else None
    assert end is not None
    begin = end - _DEFAULT_SECONDS if begin is None else begin
    if not begin < end:
        raise ValueError(f"the window ends {duration(begin - end)} before it begins; swap them")
    return begin, end


def _read(server: Prometheus, begin: float, end: float, job_id: str | None) -> Recording:
    infos = _infos(server, begin, end, job_id)
    job, ranks = infos[0][JOB_ID.name], sorted({int(info[RANK.name]) for info in infos})
    ours = eq(JOB_ID, job)
    slots = _slots(server, begin, end, ours=ours, ranks=ranks)
    done = slots.rows(_ask(server, training.STEPS, slots, ours), ranks)
    columns = nan_stats.highest(done, axis=0) > 0
    if not columns.any():
        raise ValueError(f"job {job} completed no step in that window; give another --from")
    per_step = np.where(done > 0, done, np.nan)
    phases = {
        phase: _phase(server, slots, (ours, eq(PHASE, phase)), ranks) / per_step
        for phase in STEP_PHASES
    }
    seconds = np.sum(list(phases.values()), axis=0)
    start = slots.begin + slots.seconds * np.arange(slots.count) + 0 * done
    unknown = np.full_like(done, np.nan)
    stands_for = nan_stats.median(per_step, axis=0)
    steps = Steps(
        job_id=job,
        attempt=max(_number(info, ATTEMPT.name) for info in infos),
        world_size=max(_number(info, WORLD_SIZE.name) for info in infos) or len(ranks),
        cluster=infos[0].get(CLUSTER.name, ""),
        project=infos[0].get(PROJECT.name, ""),
        members=_members(server, infos, ours, slots.last),
        numbers=_numbers(server, slots, ours, stands_for)[columns],
        seconds=seconds[:, columns],
        phases={phase: values[:, columns] for phase, values in phases.items()},
        start=start[:, columns],
        first_arrival=unknown[:, columns],
        last_arrival=unknown[:, columns],
        loss=_loss(server, slots, ours, done)[:, columns],
        stands_for=stands_for[columns],
        durations=_durations(server, slots, ours, columns),
        notes=(_resolution(slots, stands_for[columns]),),
    )
    attempt = Attempt(number=steps.attempt, outcome=_outcome(server, ours, slots.last))
    return Recording(source_kind=KIND, path=Path(job), steps=steps, events=(), attempts=(attempt,))


def _infos(server: Prometheus, begin: float, end: float, job_id: str | None) -> list[Labels]:
    """Identity of every rank of the job, of its newest attempt."""
    matchers = () if job_id is None else (eq(JOB_ID, job_id),)
    seconds = math.ceil(end - begin)
    query = f"last_over_time({select(training.RANK_INFO, *matchers)}[{seconds}s])"
    found = [series.labels for _, series in by_label(server.instant(query, end), RANK.name)]
    jobs = sorted({info.get(JOB_ID.name, "") for info in found})
    if not jobs:
        which = "any job" if job_id is None else f"job {job_id}"
        raise ValueError(f"{server.shown} knows nothing of {which} in that window; check --job-id")
    if len(jobs) > 1:
        some = ", ".join(jobs[:_NAMED]) + (", ..." if len(jobs) > _NAMED else "")
        raise ValueError(
            f"{server.shown} knows {plural(len(jobs), 'job')} there; give --job-id: {some}"
        )
    found.sort(key=lambda info: _number(info, ATTEMPT.name))
    return list({info[RANK.name]: info for info in found}.values())


def _slots(
    server: Prometheus, begin: float, end: float, *, ours: Matcher, ranks: list[int]
) -> _Slots:
    """Slots of at least three scrapes, few enough for all ranks and phases."""
    back = math.ceil(min(end - begin, _MOST_SECONDS_LOOKED_AT))
    one = select(training.STEPS, ours, eq(RANK, str(ranks[0])))
    found = server.instant(f"{one}[{back}s]", end)
    times = np.array([at for series in found[:1] for at, _ in series.points])
    if len(times) <= 1:
        raise ValueError(f"{server.shown} has under two samples of that job there; give --from")
    most = min(_MOST_SLOTS, MAX_POINTS, max(1, MAX_CELLS // (len(ranks) * len(STEP_PHASES))))
    scrape = float(np.median(np.diff(times)))
    seconds = max(math.ceil(_SCRAPES_A_SLOT * scrape), math.ceil((end - begin) / most))
    count = int((end - begin) // seconds)
    if count < 1:
        raise ValueError(
            f"the window of {duration(end - begin)} is shorter than {_SCRAPES_A_SLOT} scrapes of"
            f" {duration(scrape)}; give an earlier --from"
        )
    return _Slots(begin=end - count * seconds, seconds=float(seconds), count=count)


def _ask(server: Prometheus, metric: Metric, slots: _Slots, *of: Matcher) -> list[Series]:
    """What a counter of the ranks grew by in every slot."""
    query = by("max", increase(metric, f"{slots.seconds:.0f}s", *of), RANK)
    return server.over(query, slots.begin + slots.seconds, slots.last, slots.seconds)


def _phase(server: Prometheus, slots: _Slots, of: tuple[Matcher, ...], ranks: list[int]) -> Matrix:
    """Seconds in a phase by slot; zero all over where the server has no series of the phase."""
    found = _ask(server, training.PHASE_SECONDS, slots, *of)
    return slots.rows(found, ranks) if found else np.zeros((len(ranks), slots.count))


def _durations(
    server: Prometheus, slots: _Slots, ours: Matcher, columns: Flags
) -> DurationHistogram | None:
    """Steps by how long they took, of all nodes together; None without such a histogram."""
    query = by("sum", increase(training.STEP_SECONDS, f"{slots.seconds:.0f}s", ours), LE)
    found = {float(series.labels[LE.name]): series for series in _over(server, query, slots)}
    if math.inf not in found:
        return None
    counts = np.full((len(found), slots.count), np.nan)
    for row, bound in enumerate(sorted(found)):
        slots.put(counts[row], found[bound])
    return DurationHistogram(bounds=np.array(sorted(found)), counts=counts[:, columns])


def _loss(server: Prometheus, slots: _Slots, ours: Matcher, shape: Matrix) -> Matrix:
    """The job's loss, the same in every row."""
    values = np.full(slots.count, np.nan)
    for series in _over(server, by("max", select(training.LOSS, ours), JOB_ID), slots):
        slots.put(values, series)
    return np.where(np.isnan(shape), np.nan, values)


def _numbers(
    server: Prometheus, slots: _Slots, ours: Matcher, stands_for: Matrix
) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Step at the end of every slot; counted from 0 where the job went back to earlier ones."""
    told = np.full(slots.count, np.nan)
    for series in _over(server, by("max", select(training.STEP, ours), JOB_ID), slots):
        slots.put(told, series)
    at = ~np.isnan(stands_for)
    if np.isnan(told[at]).any() or (np.diff(told[at]) <= 0).any():
        told = np.cumsum(np.maximum(1.0, np.round(np.nan_to_num(stands_for)))) - 1
    numbers: np.ndarray[tuple[int], np.dtype[np.int64]] = np.nan_to_num(told).astype(np.int64)
    return numbers


def _over(server: Prometheus, query: str, slots: _Slots) -> list[Series]:
    return server.over(query, slots.begin + slots.seconds, slots.last, slots.seconds)


def _members(
    server: Prometheus, infos: list[Labels], ours: Matcher, at: float
) -> tuple[Member, ...]:
    query = by("max", f"last_over_time({select(training.LAST_PROGRESS, ours)}[1h])", RANK)
    progress = {rank: s.points[-1][1] for rank, s in by_label(server.instant(query, at), RANK.name)}
    return tuple(
        Member(
            rank=(rank := int(info[RANK.name])),
            local_rank=_number(info, LOCAL_RANK.name),
            node=info.get(NODE.name, ""),
            gpu_uuid=info.get(UUID.name, ""),
            mesh=dict(_mesh(info)),
            phase="unknown",
            progress_seconds=progress.get(rank, 0.0),
        )
        for info in sorted(infos, key=lambda info: int(info[RANK.name]))
    )


def _mesh(info: Labels) -> Iterator[tuple[str, int]]:
    for axis in MESH:
        if info.get(axis.name, "").isdecimal():
            yield axis.name, int(info[axis.name])


def _outcome(server: Prometheus, ours: Matcher, at: float) -> Outcome | None:
    """Told by the states of the ranks at the end of the window; None while they go on."""
    query = by("sum", select(training.RANKS, ours), STATE)
    states = {s.labels.get(STATE.name): s.points[-1][1] for s in server.instant(query, at)}
    if states.get("failed", 0) or states.get("gone", 0):
        return "failed"
    alive = sum(count for state, count in states.items() if state != "done")
    return "succeeded" if states.get("done", 0) and not alive else None


def _number(info: Labels, name: str) -> int:
    told = info.get(name, "")
    return int(told) if told.isdecimal() else 0


def _resolution(slots: _Slots, stands_for: Matrix) -> str:
    many = float(nan_stats.median(stands_for))
    return (
        f"Read from Prometheus at a resolution of {duration(slots.seconds)}: each of"
        f" {plural(len(stands_for), 'column')} is the mean of about {many:.3g} steps, and the"
        " evidence counts columns as steps."
    )
