"""Reads a job from a Prometheus over a window: every column is the mean step of a time slot."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import PurePath

import numpy as np

from lockstep_catalogue import labels, training
from lockstep_catalogue.labels import STEP_PHASES
from lockstep_catalogue.metric import Metric
from lockstep_catalogue.promql import LE, Matcher, by, eq, increase, select
from lockstep_catalogue.vocabulary import Outcome
from lockstep_prometheus.client import MAX_POINTS, Prometheus, Series
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Flags, Integers, Matrix
from lockstep_reports.readers import ReadOptions
from lockstep_reports.recording.recording import Attempt, Recording
from lockstep_reports.recording.steps import DurationHistogram, Member, Steps
from lockstep_reports.wording import duration, plural

KIND = "prometheus"
MAX_CELLS = 1 << 22
# Of three scrapes at least two fall into a slot, which ``increase`` needs, even if one is lost.
_MAX_SLOTS, _SCRAPES_A_SLOT = 400, 3
_DEFAULT_WINDOW_SECONDS = 1800.0
_MAX_SECONDS_FOR_INTERVAL = 86400.0
_MAX_NAMED_JOBS = 5
Labels = dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Slots:
    """Successive slots of ``seconds`` each, the first of which begins at ``begin`` (epoch)."""

    begin: float
    seconds: float
    count: int

    @property
    def end(self) -> float:
        """End of the last slot, in seconds since the epoch."""
        return self.begin + self.seconds * self.count

    def rows(self, answer: list[Series], ranks: list[int]) -> Matrix:
        """Values by rank [ranks, slots]; NaN where there is none."""
        by_rank: dict[int, list[Series]] = {rank: [] for rank in ranks}
        for rank, series in _list_by_rank(answer):
            if rank in by_rank:
                by_rank[rank].append(series)
        return np.array([self.row(series) for series in by_rank.values()])

    def row(self, answer: Iterable[Series]) -> Matrix:
        """Values of the series that an answer holds [slots]; NaN where there is none."""
        values = np.full(self.count, np.nan)
        for series in answer:
            for time_seconds, value in series.points:
                # A point stands at the end of the slot whose increase it is.
                slot = round((time_seconds - self.begin) / self.seconds) - 1
                if 0 <= slot < self.count and math.isfinite(value):
                    values[slot] = value
        return values


def read_url(url: str, options: ReadOptions) -> Recording:
    """The job as recorded by a server.

    Raises:
        ValueError: no server answers, it has no such job, or the window is impossible.
    """
    with Prometheus(url) as server:
        recording = _read(server, *_window(options), options.job_id)
    return replace(recording, read_at_seconds=options.now_seconds)


def _window(options: ReadOptions) -> tuple[float, float]:
    """Begin and end of the window, in seconds since the epoch."""
    window = options.window
    for bound in (window.first, window.last):
        if bound is not None and bound.wall_seconds is None:
            raise ValueError(
                f"a Prometheus is asked by time, and {bound.step} is a step; give --from and --to"
                " as times, such as 2026-01-31T12:00:00 or -15m"
            )
    end = window.last.wall_seconds if window.last else options.now_seconds
    begin = window.first.wall_seconds if window.first else None
    assert end is not None
    begin = end - _DEFAULT_WINDOW_SECONDS if begin is None else begin
    if not begin < end:
        raise ValueError(f"the window ends {duration(begin - end)} before it begins; swap them")
    return begin, end


def _read(server: Prometheus, begin: float, end: float, job_id: str | None) -> Recording:
    infos = _infos(server, begin, end, job_id)
    job = infos[0][labels.JOB_ID.name]
    ranks = sorted({int(info[labels.RANK.name]) for info in infos})
    of_job = eq(labels.JOB_ID, job)
    slots = _slots(server, begin, end, of_job=of_job, ranks=ranks)
    num_steps = slots.rows(_increases(server, training.STEPS, slots, of_job), ranks)
    columns = nan_stats.highest(num_steps, axis=0) > 0
    if not columns.any():
        raise ValueError(f"job {job} completed no step in that window; give another --from")
    per_step = np.where(num_steps > 0, num_steps, np.nan)
    phases = {
        phase: _phase(server, slots, (of_job, eq(labels.PHASE, phase)), ranks) / per_step
        for phase in STEP_PHASES
    }
    seconds = np.sum(list(phases.values()), axis=0)
    start = slots.begin + slots.seconds * np.arange(slots.count) + 0 * num_steps
    per_column = nan_stats.median(per_step, axis=0)
    loss = _ask_about_job(server, slots, training.LOSS, of_job)
    steps = Steps(
        job_id=job,
        attempt=max(_number(info, labels.ATTEMPT.name) for info in infos),
        world_size=max(_number(info, labels.WORLD_SIZE.name) for info in infos) or len(ranks),
        cluster=infos[0].get(labels.CLUSTER.name, ""),
        project=infos[0].get(labels.PROJECT.name, ""),
        members=_members(server, infos, of_job, slots.end),
        numbers=_numbers(server, slots, of_job, per_column)[columns],
        seconds=seconds[:, columns],
        phases={phase: values[:, columns] for phase, values in phases.items()},
        start=start[:, columns],
        loss=np.where(np.isnan(num_steps), np.nan, loss)[:, columns],
        steps_per_column=per_column[columns],
        durations=_durations(server, slots, of_job, columns),
        notes=(_resolution(slots, per_column[columns]),),
    )
    attempt = Attempt(number=steps.attempt, outcome=_outcome(server, of_job, slots.end))
    return Recording(source_kind=KIND, path=PurePath(job), steps=steps, attempts=(attempt,))


def _infos(server: Prometheus, begin: float, end: float, job_id: str | None) -> list[Labels]:
    """Labels of every rank of the job, of its newest attempt."""
    matchers = () if job_id is None else (eq(labels.JOB_ID, job_id),)
    seconds = math.ceil(end - begin)
    query = f"last_over_time({select(training.RANK_INFO, *matchers)}[{seconds}s])"
    infos = [series.labels for _, series in _list_by_rank(server.instant(query, end))]
    jobs = sorted({info.get(labels.JOB_ID.name, "") for info in infos})
    if not jobs:
        which = "any job" if job_id is None else f"job {job_id}"
        raise ValueError(
            f"{server.address} knows nothing of {which} in that window; check --job-id"
        )
    if len(jobs) > 1:
        some = ", ".join(jobs[:_MAX_NAMED_JOBS]) + (", ..." if len(jobs) > _MAX_NAMED_JOBS else "")
        raise ValueError(
            f"{server.address} knows {plural(len(jobs), 'job')} there; give --job-id: {some}"
        )
    infos.sort(key=lambda info: _number(info, labels.ATTEMPT.name))
    return list({info[labels.RANK.name]: info for info in infos}.values())


def _slots(
    server: Prometheus, begin: float, end: float, *, of_job: Matcher, ranks: list[int]
) -> _Slots:
    """Slots of at least three scrapes, few enough for all ranks and phases."""
    range_seconds = math.ceil(min(end - begin, _MAX_SECONDS_FOR_INTERVAL))
    first_rank = select(training.STEPS, of_job, eq(labels.RANK, str(ranks[0])))
    answer = server.instant(f"{first_rank}[{range_seconds}s]", end)
    times = np.array([time_seconds for series in answer[:1] for time_seconds, _ in series.points])
    if len(times) <= 1:
        raise ValueError(f"{server.address} has under two samples of that job there; give --from")
    max_slots = min(_MAX_SLOTS, MAX_POINTS, max(1, MAX_CELLS // (len(ranks) * len(STEP_PHASES))))
    scrape_seconds = float(np.median(np.diff(times)))
    seconds = max(math.ceil(_SCRAPES_A_SLOT * scrape_seconds), math.ceil((end - begin) / max_slots))
    count = int((end - begin) // seconds)
    if count < 1:
        raise ValueError(
            f"the window of {duration(end - begin)} is shorter than {_SCRAPES_A_SLOT} scrapes of"
            f" {duration(scrape_seconds)}; give an earlier --from"
        )
    return _Slots(begin=end - count * seconds, seconds=float(seconds), count=count)


def _increases(server: Prometheus, metric: Metric, slots: _Slots, *of: Matcher) -> list[Series]:
    """Increase of a counter of the ranks in every slot."""
    query = by("max", increase(metric, f"{slots.seconds:.0f}s", *of), labels.RANK)
    return _over(server, query, slots)


def _phase(server: Prometheus, slots: _Slots, of: tuple[Matcher, ...], ranks: list[int]) -> Matrix:
    """Seconds in a phase [ranks, slots]; all zero where the server has no series of the phase."""
    answer = _increases(server, training.PHASE_SECONDS, slots, *of)
    return slots.rows(answer, ranks) if answer else np.zeros((len(ranks), slots.count))


def _durations(
    server: Prometheus, slots: _Slots, of_job: Matcher, columns: Flags
) -> DurationHistogram | None:
    """Histogram of the steps of all nodes; None where the server has none."""
    query = by("sum", increase(training.STEP_SECONDS, f"{slots.seconds:.0f}s", of_job), LE)
    by_bound = {float(series.labels[LE.name]): series for series in _over(server, query, slots)}
    if math.inf not in by_bound:
        return None
    bounds = sorted(by_bound)
    counts = np.array([slots.row([by_bound[bound]]) for bound in bounds])
    return DurationHistogram(bounds=np.array(bounds), counts=counts[:, columns])


def _ask_about_job(server: Prometheus, slots: _Slots, metric: Metric, of_job: Matcher) -> Matrix:
    """The highest value of a gauge over the job at the end of every slot [slots]."""
    return slots.row(_over(server, by("max", select(metric, of_job), labels.JOB_ID), slots))


def _numbers(server: Prometheus, slots: _Slots, of_job: Matcher, per_column: Matrix) -> Integers:
    """Step number at the end of every slot [slots].

    Counted from 0 where the job has resumed from an earlier step.
    """
    numbers, has_steps = (
        _ask_about_job(server, slots, training.STEP, of_job),
        ~np.isnan(per_column),
    )
    if np.isnan(numbers[has_steps]).any() or (np.diff(numbers[has_steps]) <= 0).any():
        numbers = np.cumsum(np.maximum(1.0, np.round(np.nan_to_num(per_column)))) - 1
    rounded: Integers = np.nan_to_num(numbers).astype(np.int64)
    return rounded


def _list_by_rank(answer: list[Series]) -> Iterator[tuple[int, Series]]:
    """The series whose rank is a number, by that number."""
    for series in answer:
        value = series.labels.get(labels.RANK.name, "")
        if value.isdecimal() and len(value) < 8:  # noqa: PLR2004  # no job has ten million ranks
            yield int(value), series


def _over(server: Prometheus, query: str, slots: _Slots) -> list[Series]:
    """A query at the end of every slot."""
    return server.over(query, slots.begin + slots.seconds, slots.end, slots.seconds)


def _members(
    server: Prometheus, infos: list[Labels], of_job: Matcher, end: float
) -> tuple[Member, ...]:
    query = by("max", f"last_over_time({select(training.LAST_PROGRESS, of_job)}[1h])", labels.RANK)
    progress = {rank: s.points[-1][1] for rank, s in _list_by_rank(server.instant(query, end))}
    return tuple(
        Member(
            rank=(rank := int(info[labels.RANK.name])),
            node=info.get(labels.NODE.name, ""),
            gpu_uuid=info.get(labels.UUID.name, ""),
            mesh=dict(_mesh(info)),
            phase="unknown",
            progress_seconds=progress.get(rank, 0.0),
        )
        for info in sorted(infos, key=lambda info: int(info[labels.RANK.name]))
    )


def _mesh(info: Labels) -> Iterator[tuple[str, int]]:
    for axis in labels.MESH:
        if info.get(axis.name, "").isdecimal():
            yield axis.name, int(info[axis.name])


def _outcome(server: Prometheus, of_job: Matcher, end: float) -> Outcome | None:
    """By the states of the ranks at the end of the window; None while any of them runs."""
    query = by("sum", select(training.RANKS, of_job), labels.STATE)
    states = {s.labels.get(labels.STATE.name): s.points[-1][1] for s in server.instant(query, end)}
    if states.get("failed", 0) or states.get("gone", 0):
        return "failed"
    alive = sum(count for state, count in states.items() if state != "done")
    return "succeeded" if states.get("done", 0) and not alive else None


def _number(info: Labels, name: str) -> int:
    value = info.get(name, "")
    return int(value) if value.isdecimal() else 0


def _resolution(slots: _Slots, per_column: Matrix) -> str:
    num_steps = float(nan_stats.median(per_column))
    return (
        f"Read from Prometheus at a resolution of {duration(slots.seconds)}: each of"
        f" {plural(len(per_column), 'column')} is the mean of about {num_steps:.3g} steps, and the"
        " evidence counts columns as steps."
    )
