"""The ledgers that are held against the model, by name; each builder takes an empty folder."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .arrivals import Arrival
from .deliveries import Deliver, arrivals_of
from .job_history import Settings, Settlement
from .ledger_model import CounterKey, Expected, expect, histories_of, settlements_of
from .ledger_under_test import AmendedKey, LedgerUnderTest, group_key
from .store_ledger import sqlite_ledger
from .windows import WindowKey, sum_windows

LedgerBuilder = Callable[[Path, Settings], LedgerUnderTest]


class ModelLedger:
    """The model in the shape of a ledger: it tries the comparison itself."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        """Keeps nothing in the folder."""
        del folder
        self._settings, self._now = settings, 0.0
        self._arrivals: list[Arrival] = []
        self._settlements: list[Settlement] = []
        self._expected: Expected | None = None
        self._exact: dict[CounterKey, float] = {}
        self._served: dict[CounterKey, float] = {}
        self._amended: dict[AmendedKey, float] = {}

    def deliver(self, batch: Mapping[str, Any], received_seconds: float) -> None:
        """Keeps the events."""
        step = Deliver(batch=dict(batch), received=received_seconds)
        self._arrivals += arrivals_of([step])
        self._now, self._expected = max(self._now, received_seconds), None

    def settle(self, now: float) -> None:
        """Notes what it waits for no longer."""
        self._now, self._expected = max(self._now, now), None
        self._expect_now()
        jobs = histories_of(self._arrivals, self._settings, now, self._settlements)
        self._settlements += settlements_of(jobs)

    def records(self) -> Sequence[Mapping[str, Any]]:
        """The model's records."""
        records = self._expect_now().records
        return [{**record, "cluster": cluster} for (cluster, _), record in records.items()]

    def counters(self) -> Mapping[CounterKey, float]:
        """The highest that the model's counts have been."""
        self._expect_now()
        return self._served

    def amended(self) -> Mapping[AmendedKey, float]:
        """What the model's counts have lost."""
        self._expect_now()
        return self._amended

    def windows(self, now: float) -> Mapping[WindowKey, tuple[float, float]]:
        """The model's windows."""
        return sum_windows(self._expect_now().rows, now)

    def kill(self) -> None:
        """Loses nothing."""

    def _expect_now(self) -> Expected:
        """The model of now; counters grow with it, and what falls is amended."""
        if self._expected is None:
            now, before = self._now, self._exact
            self._expected = expect(self._arrivals, self._settings, now, self._settlements)
            self._exact = dict(self._expected.counters)
            for key in before.keys() | self._exact.keys():
                growth = self._exact.get(key, 0.0) - before.get(key, 0.0)
                self._served[key] = self._served.get(key, 0.0) + max(0.0, growth)
                group = group_key(key)
                self._amended[group] = self._amended.get(group, 0.0) + max(0.0, -growth)
        return self._expected


LEDGERS: dict[str, LedgerBuilder] = {"model": ModelLedger, "sqlite": sqlite_ledger}
"""The model itself, and the real ledger."""
