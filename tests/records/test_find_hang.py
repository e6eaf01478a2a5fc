"""Hangs are found from pages alone: since when, in which phase, and which ranks are missing."""

import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep_records.hangs import find_hang
from lockstep_records.page.reader import Page, read_page

from .sample_pages import written_page

TIMEOUT_SECONDS = 1.0
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
    return find_hang([page], page.progress_ns + round(seconds * 1e9), TIMEOUT_SECONDS) is not None


def test_twenty_median_steps_without_a_heartbeat_are_a_hang(written: Page) -> None:
    page = replace(written, phase="backward")
    assert not hangs_after(page, 20 * STEP_SECONDS - 0.1)
    assert hangs_after(page, 20 * STEP_SECONDS + 0.1)


@pytest.mark.parametrize("phase", ["init", "checkpoint", "eval", "restore"])
def test_a_pause_has_ten_times_the_time_out(written: Page, phase: str) -> None:
    page = replace(written, phase=phase)
    assert not hangs_after(page, 200 * STEP_SECONDS - 0.1)
    assert hangs_after(page, 200 * STEP_SECONDS + 0.1)


def test_before_its_first_step_a_rank_has_ten_times_the_time_out(memory: Path) -> None:
    page = replace(read_page(written_page(memory, steps=0)), phase="backward")
    assert not hangs_after(page, 10 * TIMEOUT_SECONDS - 0.1)
    assert hangs_after(page, 10 * TIMEOUT_SECONDS + 0.1)


@pytest.mark.parametrize("phase", ["done", "failed"])
def test_a_rank_that_has_ended_does_not_hang(written: Page, phase: str) -> None:
    assert not hangs_after(replace(written, phase=phase), 1e6)


@pytest.mark.parametrize(
    ("phases", "missing"),
    [
        (("sync", "backward", "sync"), (1,)),
        (("sync", "data", "backward"), (1, 2)),
        (("sync", "sync", "sync"), ()),
        (("backward", "backward", "backward"), ()),
        (("data",), (0,)),
    ],
)
def test_missing_are_the_ranks_outside_of_synchronisation(
    written: Page,
    asleep: "subprocess.Popen[bytes]",
    phases: tuple[str, ...],
    missing: tuple[int, ...],
) -> None:
    pages = [rank(written, number, phase, asleep.pid) for number, phase in enumerate(phases)]
    hang = find_hang(pages, written.progress_ns + 10**12, TIMEOUT_SECONDS)
    assert hang is not None
    assert hang.missing == missing


def test_a_stopped_process_is_missing_wherever_the_ranks_stand(
    written: Page, asleep: "subprocess.Popen[bytes]"
) -> None:
    with subprocess.Popen(["sleep", "60"]) as stopped:
        stopped.send_signal(signal.SIGSTOP)
        while Path(f"/proc/{stopped.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            pass
        pages = [rank(written, 0, "backward", asleep.pid), rank(written, 1, "sync", stopped.pid)]
        hang = find_hang(pages, written.progress_ns + 10**12, TIMEOUT_SECONDS)
        stopped.kill()
    assert hang is not None
    assert hang.missing == (1,)
