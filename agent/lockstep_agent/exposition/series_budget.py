"""Keeps a node within its number of series: zeros of rare faults first, then detail, in order."""

import time
from collections import Counter
from collections.abc import Callable, Sequence

from lockstep_agent.collector import AnyReading, HistogramReading, Part, Reading
from lockstep_catalogue import Kind, health, series_budget

_SPARSE = frozenset(metric.name for metric in series_budget.SPARSE)
_DETAIL = frozenset(metric.name for metric in series_budget.DETAIL)
_GROUPS = {
    group: frozenset(metric.name for metric in metrics)
    for group, metrics in series_budget.THINNING.items()
}
_SPARE_SERIES = 100  # a group comes back when this many are free with it: none comes and goes
_ZERO, _BY_OPTION = health.LEFT_OUT.values[:2]
_Series = tuple[str, tuple[str, ...]]
_Choice = tuple[Part, Part, Counter[str]]
"""A part, the readings of it that are served, and how many series are left out by reason."""

_NOTHING: Counter[str] = Counter()
_NO_CHOICE: _Choice = ((), (), _NOTHING)  # right for a part without readings, which it is


class SeriesBudget:
    """Chooses the readings that are served.

    A zero of a rare fault is not served until the fault has happened. Then its counter is served
    as 0 for as long as one scrape may take, and with its value afterwards: an increase from nothing
    is none in PromQL. Of a counter that is not 0 when it is first read, nothing is new.

    Args:
        hold_seconds: how long a counter that begins to count is served as 0.
        limit: number of series from which on detail is left out; None leaves nothing out.
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        hold_seconds: float,
        limit: int | None = series_budget.MAX_SERIES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
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
        return (*(served for _, served, _ in self._choices), self._left_out_part())

    def fit(self, num_series: int) -> bool:
        """Takes one more group out, or one back in, for this many series; False where it fits."""
        if self._limit is None:
            return False
        if num_series > self._limit and self._num_thinned < len(_GROUPS):
            return self._thin(self._num_thinned + 1)
        if self._num_thinned:
            last = tuple(_GROUPS)[self._num_thinned - 1]
            if num_series + self._totals()[last] + _SPARE_SERIES <= self._limit:
                return self._thin(self._num_thinned - 1)
        return False

    def _thin(self, num_thinned: int) -> bool:
        self._num_thinned, self._reasons = num_thinned, _reasons(num_thinned)
        self._choices = []
        return True

    def _choose(self, part: Part, now: float) -> _Choice:
        reasons = self._reasons
        if not any(each.metric.name in reasons for each in part):
            return part, part, _NOTHING
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
        return part, tuple(served), left_out

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
            Reading(health.AGENT_SERIES_LEFT_OUT, (reason,), totals[reason])
            for reason in health.LEFT_OUT.values[: 2 + self._num_thinned]
        )
        if numbers != self._left_out:
            self._left_out = numbers
        return self._left_out

    def _totals(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for _, _, left_out in self._choices:
            if left_out:
                total.update(left_out)
        return total


def _reasons(num_thinned: int) -> dict[str, str]:
    """Why a metric may be left out, by its name, while so many groups are."""
    reasons = dict.fromkeys(_SPARSE, _ZERO) | dict.fromkeys(_DETAIL, _BY_OPTION)
    for group, names in tuple(_GROUPS.items())[:num_thinned]:
        reasons |= dict.fromkeys(names, group)
    return reasons


def num_samples(reading: AnyReading) -> int:
    """Samples of a reading in a scrape."""
    if isinstance(reading, HistogramReading):
        return len(reading.metric.buckets) + len(reading.metric.sample_names)
    return 1
