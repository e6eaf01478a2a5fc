"""Monitors that record, that are off, and that end while the loop still uses them."""

from collections.abc import Callable
from pathlib import Path

import pytest

import lockstep

from ..rank_page import page_of


def public_names(monitor: object) -> set[str]:
    return {name for name in dir(monitor) if not name.startswith("_")}


def test_a_monitor_that_records_and_one_that_does_not_have_every_name_of_the_protocol(
    monitor: lockstep.Monitor,
) -> None:
    names = public_names(lockstep.Monitor)
    assert {"enabled", "enter_phase", "phase", "checkpoint", "step", "close"} <= names
    assert names <= public_names(monitor)
    assert names <= public_names(lockstep.disabled())


def fail_after(end: Callable[[], None]) -> None:
    end()
    raise OSError("of the loop")


@pytest.mark.parametrize("kind", ["phase", "checkpoint", "restore"])
@pytest.mark.parametrize("is_closed", [True, False])
def test_a_monitor_that_ends_within_a_block_stops_nothing(
    monitor: lockstep.Monitor, kind: str, is_closed: bool
) -> None:
    end = monitor.close if is_closed else lambda: monitor.fail(ValueError("of ours"))  # type: ignore[attr-defined]  # of a live one
    block = monitor.phase("eval") if kind == "phase" else getattr(monitor, kind)()
    with pytest.raises(OSError, match="of the loop"), block:
        fail_after(end)
    assert not monitor.enabled


def test_a_checkpoint_that_ends_after_the_monitor_stops_nothing(
    root: Path, monitor: lockstep.Monitor
) -> None:
    with monitor.checkpoint(5) as saving:
        saving.later()
    monitor.close()
    saving.end()
    assert page_of(root).state["checkpoints"] == {"ok": 0, "failed": 0}


def test_step_taken_into_a_variable_and_later_calls_do_nothing_after_the_end(
    root: Path, monitor: lockstep.Monitor
) -> None:
    step = monitor.step
    step()
    monitor.close()
    step()
    monitor.enter_phase("forward")
    page = page_of(root)
    assert (page.state["steps"], page.phase) == (1, "done")
