"""The cumulative counters: in memory for scrapes, in the store by the events' own transactions."""

import json
import threading
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, update

from lockstep_catalogue import Kind, Metric
from lockstep_catalogue.ledger import COUNTED, GROUP
from lockstep_ledger.merge.counted import Effects, Labels
from lockstep_ledger.store.tables import counters

Series = tuple[str, Labels]
"""Name of a sample, and values of its labels; of a bucket the bound is the last one."""
MAX_GROUPS = 150
MAX_NAMES = (20, 50, 100, 20)
"""Different clusters, queues, projects and classes that are counted apart."""
OTHER = "other"
_CHANGE_COUNTERS = (
    update(counters)
    .where(counters.c.number == bindparam("counter"))
    .values(value=bindparam("value"))
)


@dataclass(slots=True)
class CounterRow:
    """One series, and the ledger's wall clock at which it was first there, at 0."""

    number: int
    value: float
    created: float


class Counters:
    """All series of the counted families; the writer changes them, scrapes read copies.

    A new group of jobs gets every combination of labels at once, at 0. Clusters that are not named,
    and names and groups beyond ``MAX_NAMES`` and ``MAX_GROUPS``, are counted as "other", so that no
    client can fill the memory.
    """

    def __init__(self, clusters: frozenset[str] | None = None) -> None:
        self._clusters = clusters
        self._rows: dict[Series, CounterRow] = {}
        self._groups: set[Labels] = set()
        self._configured: set[Labels] = set()
        self._names: tuple[set[str], ...] = tuple(set() for _ in GROUP)
        self._highest = self._highest_saved = 0
        self._lock = threading.Lock()
        self._changed: dict[Series, CounterRow] = {}

    def load(self, connection: Connection) -> None:
        """Takes the series from the store."""
        for row in connection.execute(select(counters)):
            series = (row.name, tuple(json.loads(row.labels)))
            self._highest = self._highest_saved = max(self._highest, row.number)
            # A store of before may hold names that somebody invented.
            if counted_cluster(series[1][0], self._clusters) == series[1][0]:
                self._rows[series] = CounterRow(row.number, row.value, row.created)
                self._add_group(series[1][: len(GROUP)])

    def snapshot(self) -> dict[Series, CounterRow]:
        """All series as they are in the store; the rows are never changed, only replaced."""
        with self._lock:
            return dict(self._rows)

    def apply(self, effects: Effects, now_seconds: float) -> None:
        """Adds the effects of a transaction; they count once ``commit`` is called."""
        for group in effects.groups:
            self._declare(self._group(group), now_seconds)
        for name, labels, amount in effects.increments:
            self._add(name, self.counted_labels(labels), amount, now_seconds)
        for metric, labels, value in effects.observations:
            self._observe(metric, self.counted_labels(labels), value, now_seconds)

    def declare(self, groups: Iterable[Labels], now_seconds: float) -> None:
        """Lets every combination of these groups be there at 0."""
        for group in groups:
            self._configured.add(group)
            self._declare(group, now_seconds)

    def save(self, connection: Connection) -> None:
        """Writes what was added into the transaction."""
        new, old = [], []
        for (name, labels), row in self._changed.items():
            values = {"number": row.number, "value": row.value}
            if (name, labels) in self._rows:
                old.append({"counter": row.number, "value": row.value})
            else:
                text = json.dumps(labels)
                new.append({**values, "name": name, "labels": text, "created": row.created})
        if new:
            connection.execute(insert(counters), new)
        if old:
            connection.execute(_CHANGE_COUNTERS, old)

    def commit(self) -> None:
        """Makes what was added visible, after the transaction."""
        with self._lock:
            self._rows.update(self._changed)
        self._changed = {}
        self._highest_saved = self._highest

    def slo_values(self, effects: Effects) -> list[dict[str, Any]]:
        """The counts of objectives with cluster and class as they are counted."""
        return [
            {
                "cluster": self._name(0, cluster),
                "job_class": self._name(len(GROUP) - 1, job_class),
                **row._asdict(),
            }
            for cluster, job_class, row in effects.slo_rows
        ]

    def counted_labels(self, labels: Labels) -> Labels:
        """Values of labels with the group as it is counted."""
        return (*self._group(labels[: len(GROUP)]), *labels[len(GROUP) :])

    def rollback(self) -> None:
        """Forgets what was added."""
        self._changed = {}
        self._highest = self._highest_saved
        self._groups, self._names = set(), tuple(set() for _ in GROUP)
        for group in {labels[: len(GROUP)] for _, labels in self._rows}:
            self._add_group(group)

    def _add_group(self, group: Labels) -> None:
        self._groups.add(group)
        for names, name in zip(self._names, group, strict=True):
            names.add(name)

    def _name(self, position: int, name: str) -> str:
        if position == 0 and counted_cluster(name, self._clusters) != name:
            return OTHER
        is_full = len(self._names[position]) >= MAX_NAMES[position]
        return OTHER if name and is_full and name not in self._names[position] else name

    def _group(self, group: Labels) -> Labels:
        if group in self._groups:
            return group
        group = tuple(self._name(position, name) for position, name in enumerate(group))
        is_full = len(self._groups - self._configured) >= MAX_GROUPS
        # A cluster that is not configured takes no names from those that are.
        if group[0] == OTHER or (is_full and group not in self._groups):
            return (group[0], OTHER, OTHER, OTHER)
        return group

    def _declare(self, group: Labels, now_seconds: float) -> None:
        if group in self._groups:
            return
        self._add_group(group)
        for metric in COUNTED:
            for values in combinations(metric):
                if metric.kind is Kind.HISTOGRAM:
                    self._observe(metric, (*group, *values), None, now_seconds)
                else:
                    self._add(metric.name, (*group, *values), 0.0, now_seconds)

    def _observe(
        self, metric: Metric, labels: Labels, value: float | None, now_seconds: float
    ) -> None:
        """Adds a value to its bucket; None only lets the series be there."""
        bucket, total, count = metric.sample_names
        bounds = (*(repr(bound) for bound in metric.buckets), "+Inf")
        position = None if value is None else bisect_left(metric.buckets, value)
        for index, bound in enumerate(bounds):
            self._add(bucket, (*labels, bound), float(index == position), now_seconds)
        self._add(total, labels, value or 0.0, now_seconds)
        self._add(count, labels, float(value is not None), now_seconds)

    def _add(self, name: str, labels: Labels, amount: float, now_seconds: float) -> None:
        series = (name, labels)
        row = self._changed.get(series) or self._rows.get(series)
        if row is None:
            self._highest += 1
            self._changed[series] = CounterRow(self._highest, amount, now_seconds)
        elif amount:
            self._changed[series] = CounterRow(row.number, row.value + amount, row.created)


def counted_cluster(cluster: str, clusters: frozenset[str] | None) -> str:
    """A cluster as it is counted: one that is not configured is "other"."""
    return cluster if clusters is None or cluster in clusters else OTHER


def combinations(metric: Metric) -> Iterable[Labels]:
    """Every combination of the closed labels behind those of the group."""
    return product(*(label.values for label in metric.labels[len(GROUP) :]))
