"""The backward of one process, marked from outside, and loops that come to it by other ways."""

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


def test_gradients_asked_for_by_another_name_are_a_backward_too(root: Path) -> None:
    model = slow_model()
    monitor = lockstep.attach(model, root=root, environment={"LOCKSTEP_JOB_ID": "one"})
    for _ in range(STEPS):
        loss = model(torch.randn(2, 8)).square().mean()
        torch.autograd.grad(loss, list(model.parameters()))
        monitor.step()
    # In the first step it shows that nobody calls backward(); from then on the graph is asked.
    later = backward_seconds(root)[1:]
    assert len(later) == STEPS - 1
    assert all(seconds >= BACKWARD_SECONDS for seconds in later)


def test_a_backward_of_another_thread_is_none_of_the_step(root: Path) -> None:
    monitor = lockstep.attach(slow_model(), root=root, environment={"LOCKSTEP_JOB_ID": "one"})
    loss = slow_model()(torch.randn(2, 8)).square().mean()
    beside = threading.Thread(target=loss.backward)
    beside.start()
    beside.join()
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
