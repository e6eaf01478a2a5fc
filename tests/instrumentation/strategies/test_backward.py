"""The backward of one process, by ``loss.backward()`` and by other functions of torch."""

import threading
import time
from pathlib import Path

import torch

import lockstep
from lockstep_records.page.reader import read_page, read_rows

BACKWARD_SECONDS = 0.005
STEPS = 6


def slow_model() -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    model[1].register_full_backward_hook(lambda *_: time.sleep(BACKWARD_SECONDS))
    return model


def backward_seconds(root: Path) -> list[float]:
    page = read_page(root / "jobs" / "one" / "0" / "rank-00000.page")
    return [row["backward_seconds"] for row in read_rows(page)]


def test_gradients_by_autograd_grad_count_as_backward(root: Path) -> None:
    model = slow_model()
    monitor = lockstep.attach(model, root=root, environment={"LOCKSTEP_JOB_ID": "one"})
    for _ in range(STEPS):
        loss = model(torch.randn(2, 8)).square().mean()
        torch.autograd.grad(loss, list(model.parameters()))
        monitor.step()
    # The first step shows that backward() is not called; a hook on the graph marks the others.
    marked = backward_seconds(root)[1:]
    assert len(marked) == STEPS - 1
    assert all(seconds >= BACKWARD_SECONDS for seconds in marked)


def test_a_backward_of_another_thread_does_not_count(root: Path) -> None:
    monitor = lockstep.attach(slow_model(), root=root, environment={"LOCKSTEP_JOB_ID": "one"})
    loss = slow_model()(torch.randn(2, 8)).square().mean()
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    monitor.step()
    assert backward_seconds(root) == [0.0]


def test_a_backward_that_fails_ends_its_phase(root: Path) -> None:
    model = slow_model()
    monitor = lockstep.attach(model, root=root, environment={"LOCKSTEP_JOB_ID": "one"})
    loss = model(torch.randn(2, 8)).square().mean()
    loss.backward()
    try:
        loss.backward()  # its graph is freed
    except RuntimeError:
        time.sleep(BACKWARD_SECONDS)
    monitor.step()
    (row,) = read_rows(read_page(root / "jobs" / "one" / "0" / "rank-00000.page"))
    assert row["other_seconds"] >= BACKWARD_SECONDS
