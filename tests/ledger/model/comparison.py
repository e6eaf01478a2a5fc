"""A ledger held against the model: a readable list of all differences."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .arrivals import Arrival
from .deliveries import Deliver, Kill, Settle, Step, arrivals_of
from .job_history import Settings, Settlement
from .ledger_model import CounterKey, Expected, expect, histories_of, settlements_of
from .store_ledger import AmendedKey, StoreLedger, group_key
from .windows import sum_windows

OPTIONAL = {"cluster", "gpu_model", "deadline_time"}
"""Fields of a record that a ledger may leave out."""


class Player:
    """Plays steps on a ledger and holds it against the model."""

    def __init__(self, ledger: StoreLedger, settings: Settings, label: str) -> None:
        """Takes a label, such as the seed, with which each difference begins."""
        self._ledger, self._settings, self._label = ledger, settings, label
        self._arrivals: list[Arrival] = []
        self._settlements: list[Settlement] = []
        self._served: dict[CounterKey, float] = {}

    def play(
        self, steps: Sequence[Step], *, compares_between: bool = False, checked_steps: int = 10
    ) -> list[str]:
        """Plays all steps; returns what differed on the way, at most of one moment.

        Args:
            steps: in order.
            compares_between: whether the model is asked whenever the ledger settles.
            checked_steps: deliveries from one check that no counter has fallen to the next.
        """
        for number, step in enumerate(steps):
            found: list[str] = []
            if isinstance(step, Deliver):
                self._ledger.deliver(step.batch, step.received)
                self._arrivals += arrivals_of([step])
            elif isinstance(step, Kill):
                self._ledger.kill()
            else:
                found = self._settle(step, compares=compares_between)
            if not isinstance(step, Deliver) or number % checked_steps == 0:
                found += self._fallen()
            if found:
                return [f"{self._label} step {number} of {len(steps)}: {line}" for line in found]
        return []

    def compare(self, now: float) -> list[str]:
        """Settles at a moment and returns every difference from the model."""
        found = self._settle(Settle(now=now), compares=True) + self._fallen()
        return [f"{self._label}: {line}" for line in found]

    def _settle(self, step: Settle, *, compares: bool) -> list[str]:
        self._ledger.settle(step.now)
        expected = expect(self._arrivals, self._settings, step.now, self._settlements)
        jobs = histories_of(self._arrivals, self._settings, step.now, self._settlements)
        self._settlements += settlements_of(jobs)
        return list(differences(expected, self._ledger, step.now)) if compares else []

    def _fallen(self) -> list[str]:
        """Counters that are lower than before."""
        served = dict(self._ledger.counters())
        found = [
            f"counter {_spell(key)} fell from {before} to {served.get(key, 0.0)}"
            for key, before in self._served.items()
            if served.get(key, 0.0) < before and not _is_close(served.get(key, 0.0), before)
        ]
        self._served = served
        return found


def differences(expected: Expected, ledger: StoreLedger, now: float) -> Iterator[str]:
    """Every difference between a ledger and the model."""
    yield from _record_differences(expected.records, ledger.records())
    yield from _counter_differences(expected.counters, ledger.counters(), ledger.amended())
    windows, got = sum_windows(expected.rows, now), ledger.windows(now)
    for key in sorted(windows.keys() | got.keys()):
        pair, other = windows.get(key, (0.0, 0.0)), got.get(key, (0.0, 0.0))
        if not _is_equal(list(pair), list(other)):
            yield f"window {'/'.join(key)}: expected {pair}, got {other}"


def _record_differences(
    expected: Mapping[tuple[str, str], Mapping[str, Any]], got: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    by_id = {(record["cluster"], name): record for record in got for name in record["ids"]}
    for (cluster, job_id), record in sorted(expected.items()):
        other = by_id.get((cluster, job_id))
        if other is None:
            yield f"job {cluster}/{job_id}: expected a record, got none"
            continue
        absent = record.keys() - other.keys() - OPTIONAL
        if absent:
            yield f"job {cluster}/{job_id}: the record has no {', '.join(sorted(absent))}"
        missing = set(record["ids"]) - set(other["ids"])
        if missing:
            yield f"job {cluster}/{job_id}: ids: {sorted(missing)} do not answer"
        for name in record.keys() & other.keys() - {"ids", "cluster"}:
            if not _is_equal(record[name], other[name]):
                values = f"expected {record[name]!r}, got {other[name]!r}"
                yield f"job {cluster}/{job_id}: {name}: {values}"
    if len(got) != len(expected):
        names = sorted(str(record["ids"]) for record in got)
        yield f"{len(expected)} jobs expected, got {len(got)}: {', '.join(names)}"


def _counter_differences(
    expected: Mapping[CounterKey, float],
    served: Mapping[CounterKey, float],
    amended: Mapping[AmendedKey, float],
) -> Iterator[str]:
    """By family and group always, and by every label where nothing was amended."""
    sums: dict[AmendedKey, float] = defaultdict(float)
    for key, value in expected.items():
        sums[group_key(key)] += value
    totals: dict[AmendedKey, float] = defaultdict(float)
    for key, value in served.items():
        totals[group_key(key)] += value
    for group in sorted(sums.keys() | totals.keys() | amended.keys()):
        exact = totals[group] - amended.get(group, 0.0)
        is_histogram = group[0].endswith("_count")
        is_kept = is_histogram and exact >= sums[group]  # it keeps its first observation
        if not _is_close(sums[group], exact) and not is_kept:
            values = f"expected {sums[group]}, got {totals[group]} - {amended.get(group, 0.0)}"
            yield f"counter {_spell(group)}: {values}"
    for key in sorted(expected.keys() | served.keys()):
        is_exact = not amended.get(group_key(key)) and not key[0].endswith("_count")
        pair = expected.get(key, 0.0), served.get(key, 0.0)
        if is_exact and not _is_close(*pair):
            yield f"counter {_spell(key)}: expected {pair[0]}, got {pair[1]}"


def _spell(key: CounterKey) -> str:
    return f"{key[0]}{{{', '.join(f'{name}={value}' for name, value in key[1])}}}"


def _is_close(left: float, right: float) -> bool:
    return math.isclose(left, right, rel_tol=1e-6, abs_tol=1e-3)


def _is_equal(left: Any, right: Any) -> bool:
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        names = left.keys() | right.keys()
        return all(_is_equal(left.get(name, 0), right.get(name, 0)) for name in names)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        pairs = zip(left, right, strict=False)
        return len(left) == len(right) and all(_is_equal(*pair) for pair in pairs)
    if _is_number(left) and _is_number(right):
        return _is_close(left, right)
    return bool(left == right)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
