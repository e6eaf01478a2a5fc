"""What timing a step on a device costs the host: microseconds a step, on events that cost nothing.

Usage: ``python bench/overhead/device_cost.py``. The phases of a DDP step, and of FSDP2 with so many
modules, are entered with and without a device, by the recorder in C and in Python, in rounds that
take turns; medians.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_STEPS, _ROUNDS = 300, 15
_MODULES = {"ddp": 0, "fsdp2 of 8 modules": 8, "fsdp2 of 80 modules": 80}


class _Event:
    """Passes at once and costs one store."""

    def __init__(self, *, enable_timing: bool = False) -> None:
        del enable_timing

    def record(self, stream: object = None) -> None:
        """Puts it into no stream."""

    def query(self) -> bool:
        """True."""
        return True

    def elapsed_time(self, end_event: object) -> float:
        """A millisecond."""
        del end_event
        return 1.0


_STREAM = SimpleNamespace(query=lambda: False)
_DEVICE = SimpleNamespace(
    is_initialized=lambda: True,
    Event=_Event,
    current_stream=lambda: _STREAM,
    is_current_stream_capturing=lambda: False,
)


def _wait(recorder: Any, kind: str) -> None:
    recorder.wait_ended(recorder.wait_begins(), kind, 1, 8, 2)


def _step(recorder: Any, modules: int) -> None:
    recorder.enter_phase("data")
    recorder.enter_phase("forward")
    for _ in range(modules):
        _wait(recorder, "all_gather")
    recorder.enter_phase("backward")
    for _ in range(modules):
        _wait(recorder, "all_gather")
        _wait(recorder, "reduce_scatter")
    recorder.first_arrival()
    _wait(recorder, "all_reduce")
    recorder.enter_phase("optimizer")
    recorder.enter_phase("other")
    recorder.step(loss=1.0)


def _recorder(root: Path, name: str, *, on_device: bool) -> Any:
    from lockstep.recorder import device  # noqa: PLC0415  # the switch of the recorder in C comes first
    from lockstep.recorder.native import new_recorder  # noqa: PLC0415  # as above
    from lockstep_records.page.writer import PageWriter, RankIdentity  # noqa: PLC0415  # as above

    page = PageWriter(root / f"{name}.page", RankIdentity(job_id=name, rank=0, world_size=1), 64)
    callbacks = SimpleNamespace(
        tick=lambda _now: 1 << 62,
        inspect_loss=lambda _loss: 0,
        step_ended=lambda *_: None,
        fail=lambda error: sys.exit(repr(error)),
        part_failed=lambda _part, error: sys.exit(repr(error)),
    )
    recorder: Any = new_recorder(page, callbacks)
    recorder.wake_rows = 1 << 62
    recorder.slow_seconds = float("inf")
    if on_device:
        device.stand_in = _DEVICE
        recorder.use_device(device.find_device())
    return recorder


def _measure() -> None:
    root = Path(
        tempfile.mkdtemp(prefix="lockstep-bench-", dir="/dev/shm")
    )  # a page must lie on a tmpfs
    try:
        for name, modules in _MODULES.items():
            recorders = [
                _recorder(root, f"{modules}-{on_device}", on_device=on_device)
                for on_device in (False, True)
            ]
            seconds: list[list[float]] = [[], []]
            for _ in range(_ROUNDS):
                for recorder, taken in zip(recorders, seconds, strict=True):
                    began = time.perf_counter()
                    for _ in range(_STEPS):
                        _step(recorder, modules)
                    taken.append((time.perf_counter() - began) / _STEPS)
            bare, timed = (statistics.median(taken) * 1e6 for taken in seconds)
            events = 8 + 6 * modules
            print(f"  {name}: {events} events, {bare:.1f} us without, {timed:.1f} us with a device")
    finally:
        shutil.rmtree(root, ignore_errors=True)


def main() -> None:
    """Measures either recorder in a process of its own."""
    if len(sys.argv) > 1:
        _measure()
        return
    for switch, name in (("on", "C"), ("off", "Python")):
        print(f"recorder in {name}:", flush=True)
        subprocess.run(
            [sys.executable, __file__, "measure"],
            env={**os.environ, "LOCKSTEP_NATIVE": switch},
            check=True,
        )


if __name__ == "__main__":
    main()
