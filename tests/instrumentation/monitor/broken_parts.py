"""Ways to break each part of the monitor, and the part that each of them costs."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep.monitor.fingerprints import Fingerprints
from lockstep_records.files.switches import ProfileRequest, Switches, write_switches

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
    """A device in which something is broken."""

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
    "the worker server": (
        "flight_recorder",
        at("lockstep.hangs.rank_watch.start_worker_server"),
    ),
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
    "a restore's end": ("restores", at("lockstep.monitor.reports.write_restored")),
    "an error in a block": ("blocks", at(f"{_PERIODIC}.PeriodicStats.count_out_of_memory")),
}
