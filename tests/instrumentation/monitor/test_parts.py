"""Each part of the monitor is broken in turn: training goes on, all else is recorded."""

import logging
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import lockstep
from lockstep.guard import LOST
from lockstep.monitor.fingerprints import Fingerprints
from lockstep_records.files.switches import ProfileRequest, Switches, write_switches
from lockstep_records.page.reader import Page, read_page, read_rows

from ..fake_device import FakeStream, fail_from_now, fake_device

_WATCH = "lockstep.monitor.step_watch"
Break = Callable[[pytest.MonkeyPatch, Path], None]


class BrokenError(RuntimeError):
    """Raised by what a test has broken."""


def broken(*_: Any, **__: Any) -> Any:
    raise BrokenError("broken by the test")


def break_at(patch: pytest.MonkeyPatch, target: str) -> None:
    """Breaks what a dotted path names; ``lockstep.attach`` is the module and not the function."""
    owner, _, name = target.rpartition(".")
    if owner in sys.modules:
        patch.setattr(sys.modules[owner], name, broken)
    else:
        patch.setattr(target, broken)


def at(*targets: str) -> Break:
    """Breaks what dotted paths name."""

    def apply(patch: pytest.MonkeyPatch, _root: Path) -> None:
        for target in targets:
            break_at(patch, target)

    return apply


def without_module(name: str) -> Break:
    """A build of torch whose modules this one of ours cannot import."""

    def apply(patch: pytest.MonkeyPatch, _root: Path) -> None:
        patch.delitem(sys.modules, name, raising=False)
        patch.setitem(sys.modules, name, None)

    return apply


def with_device(**changes: Any) -> Break:
    def apply(patch: pytest.MonkeyPatch, _root: Path) -> None:
        stream = FakeStream()
        device = fake_device(stream, **changes)
        patch.setattr(f"{_WATCH}.find_device", lambda: device)

    return apply


def with_broken_events(patch: pytest.MonkeyPatch, root: Path) -> None:
    """A device whose runtime refuses every call."""
    fail_from_now(patch)
    with_device()(patch, root)


def with_switches(*targets: str) -> Break:
    """A file of switches that asks for a trace."""

    def apply(patch: pytest.MonkeyPatch, root: Path) -> None:
        job = root / "jobs" / "job-a"
        job.mkdir(parents=True)
        write_switches(job, Switches(profile=ProfileRequest(id="p-1", steps=1, ranks=None)))
        at(*targets)(patch, root)

    return apply


def with_fingerprints(patch: pytest.MonkeyPatch, _root: Path) -> None:
    """Fingerprints in each step, though the model has no replica."""
    patch.setattr(
        "lockstep.monitor.fingerprints.watch_replicas",
        lambda monitor, *_, **__: Fingerprints(monitor, every=1),
    )
    patch.setattr(Fingerprints, "_take", broken)


def after_an_attempt(patch: pytest.MonkeyPatch, root: Path) -> None:
    """Steps that an earlier attempt has completed are judged one by one."""
    patch.setattr("lockstep.monitor.periodic.highest_step_before", lambda _: 100)
    at("lockstep.monitor.anomalies.AnomalyDetector.step")(patch, root)


_PERIODIC = "lockstep.monitor.periodic"
_TRACES = "lockstep.telemetry.traces.Traces"
_HOOKS = "lockstep.strategies.hooks.StepHooks"
_OPERATIONS = "lockstep.recorder.operations.OperationRecorder"
_IDENTITY = "lockstep.identity.rank_identity"
BREAKS: dict[str, tuple[str, Break]] = {
    "torch has no version": ("versions", at(f"{_IDENTITY}._torch_version")),
    "a build without NCCL": ("versions", at(f"{_IDENTITY}._nccl_version")),
    "a GPU without a UUID": ("gpu_identity", at(f"{_IDENTITY}._gpu_uuid")),
    "no /proc of the launcher": ("earlier_attempts", at(f"{_IDENTITY}.launch_key_of")),
    "attempts cannot be listed": ("earlier_attempts", at("lockstep.attach.with_attempt")),
    "earlier pages cannot be read": ("earlier_attempts", at(f"{_PERIODIC}.highest_step_before")),
    "a strange schedule": ("pipeline", at("lockstep.attach.mesh_with_stage")),
    "logs cannot follow": ("logs", at("lockstep.attach.follow")),
    "the hook of errors": ("last_error", at("lockstep.attach.record_last_error")),
    "spans at their start": ("spans", at("lockstep.monitor.live.Traces")),
    "the limit of slow steps": ("spans", at(f"{_TRACES}.limit_seconds")),
    "the span of a slow step": ("spans", at(f"{_TRACES}.step_ended")),
    "the span of a block": ("spans", at(f"{_TRACES}.phase_ended")),
    "spans at their end": ("spans", at(f"{_TRACES}.close")),
    "the age of the process": ("process_age", at(f"{_PERIODIC}._process_seconds")),
    "the garbage collector": ("garbage_collection", at(f"{_PERIODIC}.Pauses")),
    "the collector's end": ("garbage_collection", at("lockstep.monitor.periodic.Pauses.release")),
    "memory": ("memory", at("lockstep.monitor.memory.Memory.sample")),
    "the check of the page": ("page_check", at(f"{_PERIODIC}.PeriodicStats._check_page")),
    "the lock of the page": ("page_check", at("lockstep_records.page.lock.PageLock.renew")),
    "the check of the loop": ("loop_check", at(f"{_PERIODIC}.PeriodicStats._check_steps")),
    "bounds": ("anomalies", at("lockstep.monitor.anomalies.AnomalyDetector.update_bounds")),
    "the judge of losses": ("anomalies", at("lockstep.monitor.anomalies.AnomalyDetector.loss")),
    "the judge of norms": ("anomalies", at("lockstep.monitor.anomalies.AnomalyDetector.norm")),
    "the judge of steps": ("anomalies", after_an_attempt),
    "the hang watch": ("hang_watch", at(f"{_WATCH}.HangWatch")),
    "the timer of hangs": ("hang_watch", at("lockstep.hangs.rank_watch.HangWatch.arm")),
    "the worker server": ("flight_recorder", at("lockstep.hangs.rank_watch.start_worker_server")),
    "the file of operations": ("operations", at(f"{_WATCH}.OperationWriter")),
    "the begin of a sample": ("operations", at(f"{_OPERATIONS}.begin")),
    "the end of a sample": ("operations", at(f"{_OPERATIONS}.end")),
    "a boundary in a sample": ("operations", at(f"{_OPERATIONS}._note_boundary")),
    "the end of operations": ("operations", at(f"{_OPERATIONS}.close")),
    "the search for a device": ("device_events", at(f"{_WATCH}.find_device")),
    "a device without a runtime": ("device_events", with_device(library="/no/libcudart.so")),
    "a device without a stream": ("device_events", with_device(current_stream=broken)),
    "an event that is not recorded": ("device_events", with_broken_events),
    "the file of switches": ("switches", with_switches(f"{_WATCH}.read_switches")),
    "a trace on request": ("profiler", with_switches("lockstep.monitor.step_watch.Profiler.begin")),
    "the end of a trace": (
        "profiler",
        with_switches("lockstep.monitor.step_watch.Profiler.step_ended"),
    ),
    "collectives": ("collectives", at("lockstep.strategies.watch._watch_collectives")),
    "hooks on the model": ("forward", at(f"{_HOOKS}.__init__")),
    "the module that hooks": ("forward", without_module("lockstep.strategies.watch")),
    "the choice of hooks": (
        "backward",
        at("lockstep.strategies.hooks.StepHooks._register_graph_hook"),
    ),
    "hooks on the optimizer": ("optimizer", at("lockstep.strategies.hooks.watch_optimizer")),
    "torch without DTensor": ("fingerprints", without_module("lockstep.monitor.fingerprints")),
    "replicas": ("fingerprints", at("lockstep.monitor.fingerprints.watch_replicas")),
    "a fingerprint": ("fingerprints", with_fingerprints),
    "a checkpoint's end": ("checkpoints", at(f"{_PERIODIC}.write_saved")),
    "a restore's end": ("restores", at("lockstep.monitor.live.write_restored")),
    "an error in a block": ("blocks", at(f"{_PERIODIC}.PeriodicStats.count_out_of_memory")),
}


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
    assert set(LOST) - tried == {"loop_numbers", "device_numbers", "gradient_buckets", "forks"}


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
