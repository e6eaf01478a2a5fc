"""Each part of the monitor is broken in turn: training goes on, all else is recorded."""

import logging
import math
import os
import sys
from pathlib import Path

import pytest
import torch

import lockstep
from lockstep.guard import LOST
from lockstep_records.page.reader import Page, read_page, read_rows

from .broken_parts import BREAKS, break_at, broken

STEPS = 9


class Model(torch.nn.Module):
    """A model whose loss falls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(batch).square().mean()
        return result


def train(root: Path, **variables: str) -> tuple[lockstep.Monitor, list[float]]:
    """A whole run with everything a loop may call; returns the monitor and the losses."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = lockstep.attach(
        model, optimizer, root=root, rows=64,
        environment={"LOCKSTEP_JOB_ID": "job-a", "LOCKSTEP_SAMPLE_EVERY": "2"} | variables,
    )  # fmt: skip
    losses = []
    with monitor.restore() as restoring:
        restoring.found(0)
    for step, batch in enumerate(monitor.prepare([torch.ones(2, 4)] * STEPS)):
        if step == 3:
            model(batch)  # without a backward, as in an evaluation
        loss = model(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        strange = math.nan if step == 4 else losses[-1]
        norm = math.inf if step == 5 else 1.0
        monitor.step(step=step, loss=strange, gradient_norm=norm, tokens=8, samples=2)
    with monitor.checkpoint(STEPS), monitor.phase("eval"):
        pass
    with pytest.raises(KeyError), monitor.phase("eval"):
        raise KeyError("the user's own")
    monitor.close()
    return monitor, losses


def page_of(root: Path) -> Page:
    return read_page(root / "jobs" / "job-a" / "0" / "rank-00000.page")


@pytest.fixture(scope="module", name="undisturbed")
def _undisturbed(module_memory: Path) -> list[float]:
    """Losses of the same run by a monitor that is off."""
    return train(module_memory, LOCKSTEP="off")[1]


@pytest.fixture(autouse=True)
def _hook_of_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # attach puts its own before it


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_part_costs_that_part_and_nothing_else(
    name: str,
    root: Path,
    undisturbed: list[float],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    part, apply = BREAKS[name]
    apply(monkeypatch, root)
    with caplog.at_level(logging.WARNING, logger="lockstep"):
        _, losses = train(root)
    assert losses == undisturbed
    page = page_of(root)
    assert page.phase == "done"
    assert {name for name, count in page.periodic["part_errors"].items() if count} == {part}
    off = [record.getMessage() for record in caplog.records if "is off" in record.getMessage()]
    assert len(off) == 1
    assert f"part {part} of the monitor is off" in off[0]
    assert LOST[part] in off[0]
    check_the_rest(page, part)


def check_the_rest(page: Page, part: str) -> None:
    """What does not belong to the part is in the page as ever."""
    state, periodic, rows = page.state, page.periodic, read_rows(page)
    assert (state["steps"], state["tokens"], state["samples"]) == (STEPS, 8 * STEPS, 2 * STEPS)
    assert [row["step"] for row in rows] == [*range(STEPS)]
    assert [row["loss"] is not None for row in rows] == [True] * STEPS
    seconds = state["phase_seconds"]
    recorded = {
        "forward": seconds["forward"] > 0,
        "optimizer": seconds["optimizer"] > 0,
        "memory": periodic["resident_bytes"] is not None,
        "process_age": periodic["process_seconds"] is not None,
        "checkpoints": state["checkpoints"]["ok"] == 1,
        "restores": sum(periodic["restores"].values()) == 1,
        "anomalies": periodic["nonfinite"]["loss"] == 1,
        "blocks": periodic["troubles"]["span_exception"] == 1,
        "versions": page.identity["torch_version"] != "",
    }
    hooked = {"forward", "optimizer"} if part == "forward" else {part}
    missing = {name for name, is_recorded in recorded.items() if not is_recorded}
    assert missing <= hooked


def test_a_fork_that_cannot_be_counted_costs_only_its_count(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monitor = lockstep.attach(root=root, rows=8, environment={"LOCKSTEP_JOB_ID": "job-a"})
    monkeypatch.setattr("lockstep.monitor.periodic.PeriodicStats.report_trouble", broken)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    monitor.step(tokens=1)
    monitor.close()
    page = page_of(root)
    assert page.state["steps"] == 1
    assert [name for name, count in page.periodic["part_errors"].items() if count] == ["forks"]


def test_every_part_has_a_sentence_and_thirty_ways_to_break_are_tried() -> None:
    assert len(BREAKS) >= 30
    tried = {part for part, _ in BREAKS.values()}
    # Those left out take several ranks, a GPU or numbers of the loop: tests of their own.
    assert set(LOST) - tried == {
        "loop_numbers",
        "device_numbers",
        "gradient_buckets",
        "forks",
    }


@pytest.mark.parametrize(
    "target",
    [
        "lockstep.attach.identity_from",
        "lockstep.attach.settings_from",
        "lockstep.attach.PageWriter",
        "lockstep.attach.LiveMonitor",
        "lockstep.attach.find_root",
        "lockstep.attach.watch_steps",
        "lockstep.monitor.live.PeriodicStats",
        "lockstep.monitor.step_callbacks.new_recorder",
    ],
)
def test_without_a_recorder_attach_returns_a_monitor_that_is_off(
    target: str, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LOCKSTEP_DIR", str(root))
    break_at(monkeypatch, target)
    monitor = lockstep.attach(Model(), rows=8, environment={"LOCKSTEP_JOB_ID": "job-a"})
    assert not monitor.enabled
    assert [*monitor.prepare([1, 2])] == [1, 2]
    monitor.step(tokens=1)
    monitor.close()
    off = [record for record in caplog.records if "the monitor is off" in record.getMessage()]
    assert len(off) == 1
