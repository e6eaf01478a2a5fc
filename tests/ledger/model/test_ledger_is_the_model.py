"""Every ledger agrees with the independent model, however the events of a history reach it."""

import math
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from .arrivals import Arrival
from .deliveries import (
    MODES,
    Deliver,
    Kill,
    Mode,
    Settle,
    Step,
    all_orders,
    arrivals_of,
    deliver,
    last_moment,
)
from .histories import BASE_SECONDS, CLUSTER, make_history, make_two_slurms
from .job_history import Settings, Settlement
from .ledger_model import CounterKey, Expected, expect, histories_of, settlements_of
from .store_ledger import AmendedKey, StoreLedger, group_key, postgres_ledger, sqlite_ledger
from .truth import Message
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
        """Plays all steps; returns what differed on the way, at most of one moment."""
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


def _read(number: int, row: list[Any]) -> Message:
    sender, seconds, kind, attempt, *rest = row
    fields: dict[str, Any] = dict(*rest)
    time, (node, _, launcher) = BASE_SECONDS + seconds, sender.partition("/")
    event: Mapping[str, Any] = {
        "version": 1,
        "id": f"small-{number}",
        "kind": kind,
        "job_id": fields.pop("job_id", "small"),
        "attempt": attempt,
        "time": time,
        "node": node,
        "cluster": CLUSTER,
        "fields": fields,
        **({"launcher": launcher} if launcher else {}),
    }
    return Message(sender=node or "scheduler", clock_offset=0.0, true_time=time, event=event)


SMALL_JOBS, LARGER_JOBS = (
    {name: tuple(map(_read, range(len(rows)), rows)) for name, rows in jobs.items()}
    for jobs in yaml.load(
        Path(__file__).with_name("small_jobs.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader
    ).values()
)


SETTINGS = Settings()
JOBS = SMALL_JOBS | LARGER_JOBS
LATER_SECONDS = 60 * 86_400.0
"""After the longest wait of all."""
_FEW_EVENTS = 5
_MANY = range(100, 2100)


def _differences(
    ledger: StoreLedger, seed: int, mode: Mode, kills: int = 0,
    history: list[Message] | None = None,
) -> list[str]:  # fmt: skip
    # Every second history is told with mishaps.
    history = history or make_history(seed, has_mishaps=seed % 2 == 1)
    steps = deliver(history, mode, seed, kills=kills)
    player = Player(ledger, SETTINGS, f"seed {seed} {mode}")
    found = player.play(steps, compares_between=True)
    return found or player.compare(last_moment(steps) + LATER_SECONDS)


@pytest.mark.parametrize(("seed", "mode"), list(enumerate(MODES)))
def test_a_ledger_holds_what_the_model_expects(tmp_path: Path, seed: int, mode: Mode) -> None:
    assert _differences(sqlite_ledger(tmp_path, SETTINGS), seed, mode) == []


@pytest.mark.parametrize("seed", range(2))
def test_deaths_of_the_ledger_change_nothing(tmp_path: Path, seed: int) -> None:
    assert _differences(sqlite_ledger(tmp_path, SETTINGS), seed, "late", kills=3) == []


@pytest.mark.parametrize("mode", MODES[::3])
def test_two_slurms_of_one_number_stay_apart(tmp_path: Path, mode: Mode) -> None:
    seed = MODES.index(mode)
    ledger = sqlite_ledger(tmp_path, SETTINGS)
    assert _differences(ledger, seed, mode, history=make_two_slurms(seed)) == []


@pytest.mark.parametrize("name", sorted(SMALL_JOBS))
def test_orders_of_the_events_of_a_job_give_the_same_job(tmp_path: Path, name: str) -> None:
    """Each third of the 120 of five events; of six events each seventeenth of the 720."""
    every = 3 if len(SMALL_JOBS[name]) <= _FEW_EVENTS else 17
    assert _differences_of_orders(tmp_path, name, every) == []


@pytest.mark.release
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", sorted(JOBS))
def test_every_order_of_the_events_of_a_job_gives_the_same_job(tmp_path: Path, name: str) -> None:
    assert _differences_of_orders(tmp_path, name, 1) == []


def _differences_of_orders(folder: Path, name: str, every: int) -> list[str]:
    """Differences after orders; each is a job of its own, all in one ledger."""
    steps = all_orders(JOBS[name], every)
    player = Player(sqlite_ledger(folder, SETTINGS), SETTINGS, name)
    found = player.play(steps, checked_steps=20_000)
    return found + player.compare(last_moment(steps) + LATER_SECONDS)


@pytest.mark.release
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("share", range(len(MODES)))
def test_thousands_of_histories_agree(tmp_path: Path, share: int) -> None:
    # Each history in one way, which its seed decides: all ways of each take hours.
    for seed in _MANY[share :: len(MODES)]:
        folder = tmp_path / str(seed)
        folder.mkdir()
        ledger = sqlite_ledger(folder, SETTINGS)
        assert _differences(ledger, seed, MODES[share], kills=seed // len(MODES) % 3) == []
        shutil.rmtree(folder)


def _on_postgres(server: str, seed: int) -> list[str]:
    """Differences of one history on PostgreSQL, in a mode and with deaths that the seed decides."""
    ledger = postgres_ledger(server, SETTINGS)
    try:
        return _differences(ledger, seed, MODES[seed % len(MODES)], kills=seed % 3)
    finally:
        ledger.close()


@pytest.mark.parametrize("seed", range(2))
def test_a_ledger_on_postgresql_holds_what_the_model_expects(postgres: str, seed: int) -> None:
    assert _on_postgres(postgres, seed) == []


@pytest.mark.release
@pytest.mark.timeout(3600)
def test_a_hundred_histories_agree_on_postgresql(postgres: str) -> None:
    for seed in range(100, 200):
        assert _on_postgres(postgres, seed) == []
