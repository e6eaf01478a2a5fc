"""Keeps a node within its number of series: rare faults, then detail; max-min fair."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from lockstep_agent.collector import AnyReading, HistogramReading, Part, Reading
from lockstep_catalogue import Endpoint, Kind, agent, metrics_of, series_budget
from lockstep_catalogue.gpu import GPU_OWNER_INFO, PORT_OWNER_INFO
from lockstep_catalogue.labels import JOB_ID, RANK

_Key = TypeVar("_Key", bound=Hashable)


def fair_shares(demands: Mapping[_Key, int], total: int) -> dict[_Key, int]:
    """Who demands at most an equal share gets it all; the others get equal parts of the rest."""
    shares: dict[_Key, int] = {}
    left = total
    for position, key in enumerate(sorted(demands, key=demands.__getitem__)):
        shares[key] = min(demands[key], left // (len(demands) - position))
        left -= shares[key]
    return shares


def nested_shares(
    demands: Mapping[_Key, int], owners: Mapping[_Key, int | None], total: int
) -> dict[_Key, int]:
    """Shares among owners first, then each owner's share among what he owns.

    Args:
        demands: see ``fair_shares``.
        owners: user id of each key; those without one have a common share.
        total: see ``fair_shares``.
    """
    by_owner: dict[int | None, dict[_Key, int]] = {}
    for key, demand in demands.items():
        by_owner.setdefault(owners.get(key), {})[key] = demand
    of_owners = fair_shares({o: sum(d.values()) for o, d in by_owner.items()}, total)
    return {
        key: share
        for owner, of_owner in by_owner.items()
        for key, share in fair_shares(of_owner, of_owners[owner]).items()
    }


_log = logging.getLogger(__name__)

_SPARSE = frozenset(metric.name for metric in series_budget.SPARSE)
_DETAIL = frozenset(metric.name for metric in series_budget.DETAIL)
_GROUPS = {
    group: frozenset(metric.name for metric in metrics)
    for group, metrics in series_budget.THINNING.items()
}
# Hysteresis: above the limit the next group is left out; the last one returns only when it fits
# with this many series to spare. Near the limit a group would else come and go with each tick.
_SPARE_SERIES = 100
_ZERO, _BY_OPTION = agent.LEFT_OUT.values[:2]
_SHARE = agent.LEFT_OUT.values[-1]
# Where the job's id stands among the labels; owners of devices are series of the node.
_JOB_AT = {
    metric.name: metric.labels.index(JOB_ID)
    for metric in metrics_of(Endpoint.AGENT)
    if JOB_ID in metric.labels and metric not in {GPU_OWNER_INFO, PORT_OWNER_INFO}
}
_RANKED = frozenset(metric.name for metric in metrics_of(Endpoint.AGENT) if RANK in metric.labels)
_Series = tuple[str, tuple[str, ...]]
_JobPart = tuple[str, bool]
"""A job, and whether its series by rank are meant or the others; no job for those of the node."""
_Choice = tuple[Part, Part, Counter[str], Counter[_JobPart]]
"""A part, the readings of it that are served, and how many series are left out by reason and are
served by job."""

_NODE: _JobPart = ("", False)
_NOTHING: Counter[str] = Counter()
# Correct for an empty part: nothing is served, nothing left out.
_NO_CHOICE: _Choice = ((), (), _NOTHING, Counter())
_LOG_SECONDS = 60.0
_MAX_LOGGED_JOBS = 8


class SeriesBudget:
    """Chooses the readings that are served.

    A zero of a rare fault is not served until the fault has happened. Then its counter is served
    as 0 for as long as one scrape may take, and with its value afterwards: an increase from nothing
    is none in PromQL. Of a counter that is not 0 when it is first read, nothing is new.

    Args:
        hold_seconds: how long a counter that begins to count is served as 0.
        limit: number of series from which on detail is left out; None leaves nothing out.
        clock: monotonic, in seconds.
        owner_of: user id of a job; the users share fairly what the jobs may have.
    """

    def __init__(
        self,
        hold_seconds: float,
        limit: int | None = series_budget.MAX_SERIES,
        clock: Callable[[], float] = time.monotonic,
        owner_of: Callable[[str], int | None] = lambda _: None,
    ) -> None:
        self._owner_of, self._next_log_seconds = owner_of, clock()
        self._num_limited_jobs = self._num_dropped = 0
        self._has_limited = False
        self._hold_seconds, self._limit, self._clock = hold_seconds, limit, clock
        self._zeros: set[_Series] = set()
        self._live: set[_Series] = set()
        self._held: dict[_Series, float] = {}
        self._num_thinned = 0
        self._reasons = {} if limit is None else _reasons(0)
        self._choices: list[_Choice] = []
        self._left_out: Part = ()

    def select(self, parts: Sequence[Part]) -> tuple[Part, ...]:
        """The parts to serve, and one that says how many series are left out.

        A part that is the same object as in the last call, and of which nothing is held, gives the
        same object again.
        """
        now = self._clock()
        if self._held:
            self._held = {key: until for key, until in self._held.items() if until > now}
            self._choices = []
        before = self._choices if len(self._choices) == len(parts) else [_NO_CHOICE] * len(parts)
        self._choices = [
            choice if choice[0] is part else self._choose(part, now)
            for part, choice in zip(parts, before, strict=True)
        ]
        served = self._share([served for _, served, *_ in self._choices])
        return (*served, self._left_out_part())

    def fit(self, num_series: int) -> bool:
        """Leaves one more group out, or serves one again; False when nothing changes.

        Groups leave in the order of ``THINNING`` and return in reverse. ``num_series`` is without
        the groups that are left out now.
        """
        if self._limit is None:
            return False
        if num_series > self._limit and self._num_thinned < len(_GROUPS):
            return self._thin(self._num_thinned + 1)
        if self._num_thinned:
            last = tuple(_GROUPS)[self._num_thinned - 1]
            if num_series + self._totals()[last] + _SPARE_SERIES <= self._limit:
                return self._thin(self._num_thinned - 1)
        return False

    def _share(self, parts: list[Part]) -> list[Part]:
        """The parts without the series of jobs that are beyond their share."""
        counts: Counter[_JobPart] = Counter()
        for *_, by_job in self._choices:
            counts.update(by_job)
        num_node = counts.pop(_NODE, 0)
        most = series_budget.DETAIL_JOB_SERIES
        if self._limit is not None:
            most = max(self._limit - num_node, series_budget.JOB_SERIES)
        self._num_limited_jobs = self._num_dropped = 0
        if counts.total() <= most:
            return parts
        demands = {job: counts[job, False] + counts[job, True] for job, _ in counts}
        shares = nested_shares(demands, {job: self._owner_of(job) for job in demands}, most)
        reduced = {job: share for job, share in shares.items() if share < demands[job]}
        left: dict[_JobPart, int] = {}
        for job, share in reduced.items():  # the series that say most of a job have no rank
            left[job, False] = min(share, counts[job, False])
            left[job, True] = share - left[job, False]
        self._num_limited_jobs, self._has_limited = len(reduced), True
        self._log_limited(demands, reduced)
        return [
            self._within(part, left) if any(job in reduced for job, _ in by_job) else part
            for part, (*_, by_job) in zip(parts, self._choices, strict=True)
        ]

    def _within(self, part: Part, left: dict[_JobPart, int]) -> Part:
        served: list[AnyReading] = []
        for reading in part:
            key, number = _job_part(reading), num_samples(reading)
            if key in left and left[key] < number:
                left[key] = 0  # nothing that follows: the same series are served in each tick
                self._num_dropped += number
                continue
            if key in left:
                left[key] -= number
            served.append(reading)
        return tuple(served)

    def _log_limited(self, demands: dict[str, int], shares: dict[str, int]) -> None:
        if self._clock() < self._next_log_seconds:
            return
        self._next_log_seconds = self._clock() + _LOG_SECONDS
        for job, share in list(shares.items())[:_MAX_LOGGED_JOBS]:
            _log.warning(
                "job=%s owner=%s series=%d served=%d reason='beyond its share of %d jobs cut'",
                job,
                self._owner_of(job),
                demands[job],
                share,
                len(shares),
            )

    def _thin(self, num_thinned: int) -> bool:
        self._num_thinned, self._reasons = num_thinned, _reasons(num_thinned)
        self._choices = []
        return True

    def _choose(self, part: Part, now: float) -> _Choice:
        reasons = self._reasons
        if not any(each.metric.name in reasons for each in part):
            return part, part, _NOTHING, _count_by_job(part)
        served: list[AnyReading] = []
        left_out: Counter[str] = Counter()
        for reading in part:
            reason = reasons.get(reading.metric.name)
            if reason == _ZERO and isinstance(reading, Reading):
                if self._begins(reading, now):
                    served.append(self._held_or_not(reading))
                    continue
            elif reason is None:
                served.append(reading)
                continue
            left_out[reason] += num_samples(reading)
        return part, tuple(served), left_out, _count_by_job(served)

    def _begins(self, reading: Reading, now: float) -> bool:
        """Whether the series has ever had another value than 0."""
        key = (reading.metric.name, reading.labels)
        if key in self._live:
            return True
        if reading.value == 0:
            self._zeros.add(key)
            return False
        self._live.add(key)
        if key in self._zeros and reading.metric.kind is Kind.COUNTER:
            self._held[key] = now + self._hold_seconds
        self._zeros.discard(key)
        return True

    def _held_or_not(self, reading: Reading) -> Reading:
        if (reading.metric.name, reading.labels) in self._held:
            return Reading(reading.metric, reading.labels, 0)
        return reading

    def _left_out_part(self) -> Part:
        """How many series are left out and why; the same object while the numbers stay."""
        totals = self._totals()
        numbers = tuple(
            Reading(agent.AGENT_SERIES_LEFT_OUT, (reason,), totals[reason])
            for reason in agent.LEFT_OUT.values[: 2 + self._num_thinned]
        )
        if self._has_limited:
            numbers += (
                Reading(agent.AGENT_SERIES_LEFT_OUT, (_SHARE,), self._num_dropped),
                Reading(agent.JOBS_CUT, (agent.BOUND.values[-1],), self._num_limited_jobs),
            )
        if numbers != self._left_out:
            self._left_out = numbers
        return self._left_out

    def _totals(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for _, _, left_out, _ in self._choices:
            if left_out:
                total.update(left_out)
        return total


def _reasons(num_thinned: int) -> dict[str, str]:
    """Why a metric may be left out, by its name, while so many groups are."""
    reasons = dict.fromkeys(_SPARSE, _ZERO) | dict.fromkeys(_DETAIL, _BY_OPTION)
    for group, names in tuple(_GROUPS.items())[:num_thinned]:
        reasons |= dict.fromkeys(names, group)
    return reasons


def _job_part(reading: AnyReading) -> _JobPart:
    at = _JOB_AT.get(reading.metric.name)
    return _NODE if at is None else (reading.labels[at], reading.metric.name in _RANKED)


def _count_by_job(readings: Iterable[AnyReading]) -> Counter[_JobPart]:
    counts: Counter[_JobPart] = Counter()
    number, before = 0, _NODE
    for reading in readings:  # those of a job follow each other, so few are added one by one
        at = _JOB_AT.get(reading.metric.name)
        job, by_rank = before
        if (
            (job != "")
            if at is None
            else (reading.labels[at] != job or (reading.metric.name in _RANKED) is not by_rank)
        ):
            counts[before] += number
            number, before = 0, _job_part(reading)
        number += 1 if type(reading) is Reading else num_samples(reading)
    counts[before] += number
    return counts


def num_samples(reading: AnyReading) -> int:
    """Samples of a reading in a scrape."""
    if isinstance(reading, HistogramReading):
        return len(reading.metric.buckets) + len(reading.metric.sample_names)
    return 1
