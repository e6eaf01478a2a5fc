"""Shared parameters, as the loop states them: rounds, staleness and age, in every state."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

import lockstep
from lockstep_records.page.reader import Page
from lockstep_records.page.replicas import compare_replicas

from ..rank_page import ENVIRONMENT, page_of


def attached(root: Path, **variables: str) -> lockstep.Monitor:
    return lockstep.attach(root=root, environment=ENVIRONMENT | variables, rows=64)


def sharing_of(page: Page) -> list[int | None]:
    names = ("sync_rounds", "independent_rounds", "staleness_steps", "staleness_sum")
    return [page.periodic[name] for name in names]


def test_a_round_of_all_ranks_is_as_stale_as_the_steps_since_the_round_before(root: Path) -> None:
    monitor = attached(root)
    monitor.synced()
    assert sharing_of(page_of(root)) == [1, 0, 0, 0]
    for number in range(1, 13):
        monitor.step()
        if number % 4 == 0:
            monitor.synced()
    assert sharing_of(page_of(root)) == [4, 0, 4, 12]


def test_an_exchange_with_a_server_is_as_stale_as_the_loop_says(root: Path) -> None:
    monitor = attached(root)
    for staleness_steps in (0, 3, 5):
        monitor.step()
        monitor.synced(staleness_steps=staleness_steps)
    page = page_of(root)
    assert sharing_of(page) == [3, 3, 5, 8]
    assert 0 <= time.monotonic_ns() - page.periodic["synced_ns"] < 60e9


def test_staleness_is_never_negative_also_when_a_server_begins_anew(root: Path) -> None:
    monitor = attached(root)
    monitor.synced(staleness_steps=4)
    monitor.synced(staleness_steps=-40)
    assert sharing_of(page_of(root)) == [2, 2, 0, 4]


def test_a_restart_counts_from_the_beginning_in_a_page_of_its_own(root: Path) -> None:
    monitor = attached(root)
    monitor.synced(staleness_steps=4)
    monitor.close()
    attached(root, TORCHELASTIC_RESTART_COUNT="1").step()
    assert sharing_of(page_of(root, attempt=1)) == [None] * 4
    assert sharing_of(page_of(root)) == [1, 1, 4, 4]


def test_what_a_killed_worker_had_said_can_be_read(root: Path) -> None:
    script = (
        "import os, signal, pathlib, lockstep\n"
        f"root, environment = pathlib.Path({str(root)!r}), {ENVIRONMENT!r}\n"
        "m = lockstep.attach(root=root, environment=environment, rows=64)\n"
        "m.step(); m.synced(staleness_steps=2); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    assert sharing_of(page_of(root)) == [1, 1, 2, 2]


def test_a_monitor_that_is_off_or_closed_takes_the_call(root: Path) -> None:
    lockstep.disabled().synced(staleness_steps=1)
    monitor = attached(root)
    monitor.close()
    monitor.synced()
    assert sharing_of(page_of(root)) == [None] * 4


@pytest.mark.parametrize("staleness", ["many", float("nan"), object()])
def test_nonsense_stops_no_training(root: Path, staleness: object) -> None:
    monitor = attached(root)
    monitor.synced(staleness_steps=staleness)  # type: ignore[arg-type]  # nonsense
    monitor.step(loss=1.0)
    page = page_of(root)
    assert (page.state["steps"], page.periodic["sync_rounds"]) == (1, None)


def test_ranks_that_differ_between_rounds_are_no_replicas_to_compare(root: Path) -> None:
    monitor = attached(root)
    monitor.step()
    page = page_of(root)
    other = dict(page.identity, rank=2)
    fingerprints = dict(page.periodic, fingerprints=1, fingerprint_step=(100,) * 8)
    pages = [
        Page(
            path=page.path,
            identity=identity,
            state=page.state,
            periodic=fingerprints | {"fingerprint_parameters": (value,) * 8},
            phase=page.phase,
            progress_ns=page.progress_ns,
        )
        for value, identity in enumerate((page.identity, other))
    ]
    [comparison] = compare_replicas(pages)
    assert comparison.odd == (1, 2)
    for each in pages:
        each.periodic["sync_rounds"] = 1
    assert compare_replicas(pages) == []
