"""Hangs are found from pages alone: since when, in which phase, and which ranks are missing."""

import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sample_pages import written_page

from lockstep_outcomes.progress.hangs import HangTimeouts, find_hang
from lockstep_records.page.reader import Page, read_page

TIMEOUT_SECONDS, PAUSE_SECONDS = 1.0, 300.0
TIMEOUTS = HangTimeouts(step_seconds=TIMEOUT_SECONDS, pause_seconds=PAUSE_SECONDS)
STEP_SECONDS = 0.875  # of every step of a written page


@pytest.fixture(name="written")
def _written(memory: Path) -> Page:
    page = read_page(written_page(memory, steps=10))
    return replace(page, state=page.state | {"step": 9})


@pytest.fixture(name="asleep")
def _asleep() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def rank(page: Page, number: int, phase: str, pid: int) -> Page:
    return replace(page, phase=phase, identity=page.identity | {"rank": number, "pid": pid})


def hangs_after(page: Page, seconds: float) -> bool:
    return find_hang([page], page.progress_ns + round(seconds * 1e9), TIMEOUTS) is not None


def test_twenty_median_steps_without_a_heartbeat_are_a_hang(written: Page) -> None:
    page = replace(written, phase="backward")
    assert not hangs_after(page, 20 * STEP_SECONDS - 0.1)
    assert hangs_after(page, 20 * STEP_SECONDS + 0.1)


@pytest.mark.parametrize("phase", ["init", "checkpoint", "eval", "restore"])
def test_a_pause_has_a_time_out_of_its_own(written: Page, phase: str) -> None:
    page = replace(written, phase=phase)
    assert not hangs_after(page, PAUSE_SECONDS - 0.1)
    assert hangs_after(page, PAUSE_SECONDS + 0.1)


def test_before_its_first_step_a_rank_has_the_time_out_of_a_pause(memory: Path) -> None:
    page = replace(read_page(written_page(memory, steps=0)), phase="backward")
    assert not hangs_after(page, PAUSE_SECONDS - 0.1)
    assert hangs_after(page, PAUSE_SECONDS + 0.1)


def test_a_rank_that_waits_has_the_time_of_a_pause_while_another_pauses(
    written: Page, asleep: "subprocess.Popen[bytes]"
) -> None:
    phases = ("checkpoint", "sync", "backward")
    pages = [rank(written, number, phase, asleep.pid) for number, phase in enumerate(phases)]
    end_ns = written.progress_ns + round(200 * 1e9)
    assert find_hang(pages[:2], end_ns, TIMEOUTS) is None
    hang = find_hang(pages, end_ns, TIMEOUTS)
    assert hang is not None
    assert [rank.rank for rank in hang.ranks] == [2]
    late = find_hang(pages[:2], end_ns + round(200 * 1e9), TIMEOUTS)
    assert late is not None
    assert late.missing.ranks == (0,)


def test_own_time_outs_of_a_rank_and_switches_come_before_the_default(written: Page) -> None:
    own = {"hang_timeout_seconds": 60.0, "pause_timeout_seconds": 90.0}
    page = replace(written, periodic=written.periodic | own)
    assert TIMEOUTS.apply_page(page) == HangTimeouts(step_seconds=60.0, pause_seconds=90.0)
    switched = replace(TIMEOUTS, switched_seconds=5.0).apply_page(page)
    assert switched == HangTimeouts(step_seconds=5.0, pause_seconds=90.0)


@pytest.mark.parametrize("phase", ["done", "failed"])
def test_a_rank_that_has_ended_does_not_hang(written: Page, phase: str) -> None:
    assert not hangs_after(replace(written, phase=phase), 1e6)


@pytest.mark.parametrize(
    ("phases", "missing"),
    [
        (("sync", "backward", "sync"), (1,)),
        (("sync", "data", "backward"), (1,)),
        (("sync", "sync", "sync"), ()),
        (("backward", "backward", "backward"), ()),
        (("data",), (0,)),
        (("checkpoint", "sync", "sync"), (0,)),
        (("checkpoint", "optimizer", "checkpoint"), (1,)),
        (("checkpoint", "checkpoint"), ()),
    ],
)
def test_missing_are_the_ranks_outside_of_synchronisation(
    written: Page,
    asleep: "subprocess.Popen[bytes]",
    phases: tuple[str, ...],
    missing: tuple[int, ...],
) -> None:
    pages = [rank(written, number, phase, asleep.pid) for number, phase in enumerate(phases)]
    hang = find_hang(pages, written.progress_ns + 10**13, TIMEOUTS)
    assert hang is not None
    assert hang.missing.ranks == missing


def test_a_stopped_process_is_missing_wherever_the_ranks_stand(
    written: Page, asleep: "subprocess.Popen[bytes]"
) -> None:
    with subprocess.Popen(["sleep", "60"]) as stopped:
        stopped.send_signal(signal.SIGSTOP)
        while Path(f"/proc/{stopped.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            pass
        pages = [rank(written, 0, "backward", asleep.pid), rank(written, 1, "sync", stopped.pid)]
        hang = find_hang(pages, written.progress_ns + 10**13, TIMEOUTS)
        stopped.kill()
    assert hang is not None
    assert hang.missing.ranks == (1,)
