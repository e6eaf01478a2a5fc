"""What watching costs a step on a device: ``gpu_pairs.py stub`` or ``gpu_pairs.py WIDTH [MODE]``.

``stub`` is the C stub of CUDA's runtime behind the recorder's own calls, beside a recorder without
a device; a width trains a model on the GPU, plain, by autocast or compiled. Prints JSON.
"""

import json
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "bench" / "overhead"), str(ROOT / "tests"), str(ROOT / "bench")]
import pairs  # noqa: E402  # of bench/overhead
from trained import Trained  # noqa: E402  # the same

import lockstep  # noqa: E402  # after the paths

PAIRS, BLOCK = 200, 50
PHASES = ("data", "forward", "backward", "optimizer", "other")


def of_stub(folder: Path) -> dict[str, Any]:
    """Pairs of blocks of steps without and with the stub's device, and its calls a step."""
    from instrumentation.fake_device import FakeStream, OnDevice, calls, fake_device  # noqa: PLC0415  # of the tests

    from lockstep.recorder.device import ALLOWANCE_NS  # noqa: PLC0415  # beside it

    stream, loss = FakeStream(), torch.ones(()).as_subclass(OnDevice)
    monitors: dict[str, Any] = {}
    for name in ("bare", "device"):
        monitors[name] = lockstep.attach(root=folder, environment={"LOCKSTEP_JOB_ID": name})
    recorder = monitors["device"].recorder
    recorder.use_device(fake_device(stream, allowance_ns=ALLOWANCE_NS))

    def loop(monitor: Any) -> pairs.Loop:
        def step() -> None:
            for phase in PHASES:
                monitor.enter_phase(phase)
                if phase == "backward":
                    monitor.first_arrival()
                    monitor.wait_ended(monitor.wait_begins(), "all_reduce", 1, 8, 2)
            monitor.step(loss=loss)
            stream.work(1.0)
            stream.passed_ms = stream.now_ms

        return step

    bare, watched = loop(monitors["bare"]), loop(monitors["device"])
    pairs.microseconds(watched, 200)
    before = calls()
    rows = pairs.run_pairs(bare, watched, pairs=PAIRS, num_steps=BLOCK)
    calls_by_name = {
        name: (count - before[name]) / (PAIRS + 1) / BLOCK for name, count in calls().items()
    }
    return {"rows": rows, "calls": {name: round(count, 3) for name, count in calls_by_name.items()}}


def of_gpu(folder: Path, width: int, mode: str) -> dict[str, Any]:
    """Pairs of steps, bare and watched, of one model."""
    layers = [torch.nn.Linear(width, width) for _ in range(8)]
    model: Any = torch.nn.Sequential(*layers).cuda()
    model = torch.compile(model) if mode == "compile" else model
    trained = Trained(model, torch.randn(256, width, device="cuda"))
    trained.watch(folder, {"LOCKSTEP_JOB_ID": f"pairs-{width}"})
    context = torch.autocast("cuda", torch.bfloat16) if mode == "autocast" else nullcontext()
    with context:
        trained.settle()
        measured = pairs.alternate_bare_and_watched(
            trained, lambda on: trained.hook(on=on), pairs=PAIRS
        )
    return {"rows": measured["wall"], "twins": measured["twin wall"]}


def main() -> None:
    """Measures and prints."""
    kind, mode = [*sys.argv[1:], "plain"][:2]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:  # a page must be on a tmpfs
        found = of_stub(Path(folder)) if kind == "stub" else of_gpu(Path(folder), int(kind), mode)
    rows = found.pop("rows")
    added = pairs.median_of([watched - bare for bare, watched in rows])
    bare = pairs.median_of([bare for bare, _ in rows]).value
    found |= {"kind": kind, "mode": mode, "bare_us": round(bare, 1)}
    found |= {"added_us": [round(each, 2) for each in (added.value, added.low, added.high)]}
    if twins := found.pop("twins", None):
        found["twin_us"] = round(pairs.median_of([twin - bare for bare, twin in twins]).value, 2)
    print(json.dumps(found | {"calls_a_step": round(sum(found.get("calls", {}).values()), 2)}))


if __name__ == "__main__":
    main()
