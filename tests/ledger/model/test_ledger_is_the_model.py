"""Every ledger agrees with the independent model, however the events of a history reach it."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from .comparison import Player
from .deliveries import MODES, Mode, all_orders, deliver, last_moment
from .histories import BASE_SECONDS, CLUSTER, make_history, make_two_slurms
from .job_history import Settings
from .store_ledger import StoreLedger, postgres_ledger, sqlite_ledger
from .truth import Message


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
    for jobs in yaml.safe_load(
        Path(__file__).with_name("small_jobs.yaml").read_text(encoding="utf-8")
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
