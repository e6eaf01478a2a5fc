"""Compiled regions and replayed graphs on a device that goes on when the test says so."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lockstep
from lockstep.patches.loop_calls import wrap_replay
from lockstep.recorder.phases import FLAG
from lockstep_records.page.reader import read_page, read_rows

from ..fake_device import FakeStream, fake_device

FORWARD_MS, BACKWARD_MS, GRAPH_MS, LAG_MS = 4.0, 8.0, 13.0, 1.0
STEPS = 4


class Kernels(torch.autograd.Function):
    """Passes its input on; launches a kernel of known duration both ways."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, stream: FakeStream) -> Tensor:
        ctx.stream = stream
        stream.work(FORWARD_MS)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.stream.work(BACKWARD_MS)
        return gradients[0], None


class Net(nn.Module):
    def __init__(self, stream: FakeStream) -> None:
        super().__init__()
        self.first, self.last, self.stream = nn.Linear(8, 8), nn.Linear(8, 8), stream

    def forward(self, x: Tensor) -> Tensor:
        disable: Any = torch.compiler.disable
        launch: Callable[[Tensor, FakeStream], Tensor] = disable(Kernels.apply)
        out: Tensor = self.last(launch(self.first(x), self.stream))
        return out


def watched(root: Path, stream: FakeStream, model: nn.Module) -> lockstep.Monitor:
    monitor = lockstep.attach(model, root=root, environment={"LOCKSTEP_JOB_ID": "one"}, rows=64)
    assert isinstance(monitor, lockstep.LiveMonitor)
    monitor.recorder.use_device(fake_device(stream))
    return monitor


def settled_rows(root: Path) -> list[dict[str, Any]]:
    """The rows that have the device's times, without the first: it begins in the middle."""
    rows = read_rows(read_page(root / "jobs" / "one" / "0" / "rank-00000.page"))
    settled = [row for row in rows if row["flags"] & FLAG["device"] and row["number"]]
    assert settled
    return settled


# Dynamo looks at .grad of what passes a graph break, watched or not.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_compiled_model_keeps_forward_and_backward_by_the_device(root: Path) -> None:
    stream = FakeStream()
    model: Any = torch.compile(Net(stream), backend="eager")
    monitor = watched(root, stream, model)
    for _ in range(STEPS):
        model(torch.randn(2, 8)).square().mean().backward()
        monitor.step()
        stream.passed_ms = stream.now_ms - LAG_MS
    for row in settled_rows(root):
        assert row["phase_seconds"]["forward"] == pytest.approx(FORWARD_MS / 1e3)
        assert row["phase_seconds"]["backward"] == pytest.approx(BACKWARD_MS / 1e3)
        assert row["seconds"] == pytest.approx((FORWARD_MS + BACKWARD_MS) / 1e3)


def test_a_step_inside_a_graph_is_one_block_with_its_own_begin_and_end(root: Path) -> None:
    stream = FakeStream()
    replay = wrap_replay(lambda _graph: stream.work(GRAPH_MS))
    monitor = watched(root, stream, nn.Linear(1, 1))
    for _ in monitor.prepare(range(STEPS)):
        replay(None)
        stream.work(1.0)  # what the loop launches by itself after the graph
        monitor.step()
        stream.passed_ms = stream.now_ms - LAG_MS
    for row in settled_rows(root):
        assert row["phase_seconds"]["forward"] == pytest.approx(GRAPH_MS / 1e3)
        assert row["phase_seconds"]["other"] == pytest.approx(1e-3)
        assert row["phase_seconds"]["backward"] == row["phase_seconds"]["sync"] == 0


def test_a_graph_that_is_replayed_inside_a_phase_is_a_part_of_that(root: Path) -> None:
    stream = FakeStream()
    replay = wrap_replay(lambda _graph: stream.work(GRAPH_MS))
    monitor = watched(root, stream, nn.Linear(1, 1))
    for _ in range(STEPS):
        with monitor.phase("backward"):
            replay(None)
        monitor.step()
        stream.passed_ms = stream.now_ms - LAG_MS
    for row in settled_rows(root):
        assert row["phase_seconds"]["backward"] == pytest.approx(GRAPH_MS / 1e3)
        assert row["phase_seconds"]["forward"] == 0
