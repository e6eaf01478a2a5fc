"""Fingerprints of replicas: equal while they are, different by one bit."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import lockstep
from lockstep.monitor.fingerprints import Fingerprints
from lockstep.monitor.live import LiveMonitor
from lockstep.recorder.interface import PhaseHook
from lockstep.strategies.hooks import watch_optimizer
from lockstep_records.page.reader import Page
from lockstep_records.page.replicas import fingerprints_of

from ..rank_page import ENVIRONMENT, page_of


def watch_optimizer_steps(
    monitor: lockstep.Monitor, optimizer: torch.optim.Optimizer, *, every: int
) -> PhaseHook:
    assert isinstance(monitor, LiveMonitor)
    before = watch_optimizer(monitor, optimizer)
    Fingerprints(monitor, every=every).watch(before)
    return before


def trained(root: Path, monitor: lockstep.Monitor, flip_at: int | None = None) -> Page:
    torch.manual_seed(7)
    first = torch.nn.Linear(20, 50)
    model = torch.nn.Sequential(first, torch.nn.Linear(50, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    watch_optimizer_steps(monitor, optimizer, every=10)
    for number in range(101):
        if number == flip_at:
            with torch.no_grad():
                first.weight.view(-1)[3] += 2**-20
        model(torch.ones(4, 20)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.step()
    monitor.close()
    return page_of(root)


def test_equal_replicas_have_equal_fingerprints_and_one_bit_makes_them_differ(root: Path) -> None:
    fingerprints = []
    for number, flip_at in enumerate((None, None, 85)):
        folder = root / str(number)
        folder.mkdir()
        monitor = lockstep.attach(root=folder, environment=ENVIRONMENT, rows=8)
        fingerprints.append(fingerprints_of(trained(folder, monitor, flip_at)))
    first, same, flipped = fingerprints
    assert sorted(first) == [20, 30, 40, 50, 60, 70, 80, 90]
    assert first == same
    assert {step for step in first if first[step] != flipped[step]} == {90}
    assert len(set(first.values())) == len(first)


def test_all_elements_of_parameters_are_covered_in_time(
    root: Path, monitor: lockstep.Monitor
) -> None:
    large = torch.nn.Parameter(torch.zeros(3, 4099))
    small = [torch.nn.Parameter(torch.zeros(2)) for _ in range(15)]
    optimizer = torch.optim.SGD([large, *small], lr=0.0)
    watch_optimizer_steps(monitor, optimizer, every=2)
    covered = set()
    for index in (0, 4095, 4096, 8192, large.numel() - 1):
        with torch.no_grad():
            large.zero_().view(-1)[index] = math.nan
        before = page_of(root).periodic["nonfinite"]["parameters"]
        for _ in range(20):
            optimizer.step()
            monitor.step()
        if page_of(root).periodic["nonfinite"]["parameters"] > before:
            covered.add(index)
    assert covered == {0, 4095, 4096, 8192, large.numel() - 1}


@pytest.mark.parametrize(
    "weights",
    [
        torch.zeros(8, 8),
        torch.zeros(8, 8).t(),
        torch.zeros(8, 16)[:, ::2],
        torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.zeros(4, 0),
    ],
)
def test_elements_are_all_covered_in_any_memory_layout(
    root: Path, monitor: lockstep.Monitor, weights: torch.Tensor
) -> None:
    parameter = torch.nn.Parameter(weights)
    optimizer = torch.optim.SGD([parameter, torch.nn.Parameter(torch.zeros(1))], lr=0.0)
    watch_optimizer_steps(monitor, optimizer, every=2)
    with torch.no_grad():
        parameter.fill_(math.nan)
    for _ in range(4):
        optimizer.step()
        monitor.step()
    monitor.close()
    assert page_of(root).periodic["nonfinite"]["parameters"] == weights.numel()


@pytest.mark.parametrize("kind", [torch.bool, torch.int8, torch.complex64, torch.float8_e4m3fn])
def test_parameters_of_other_kinds_are_left_out_and_the_rest_are_covered(
    root: Path, monitor: lockstep.Monitor, kind: torch.dtype
) -> None:
    other = torch.nn.Parameter(torch.zeros(4).to(kind), requires_grad=False)
    optimizer = torch.optim.SGD([other, torch.nn.Parameter(torch.full((3,), math.inf))])
    half = torch.nn.Parameter(torch.full((2,), math.nan, dtype=torch.bfloat16))
    optimizer.add_param_group({"params": [half]})
    watch_optimizer_steps(monitor, optimizer, every=2)
    for _ in range(4):
        optimizer.step()
        monitor.step()
    assert monitor.enabled
    monitor.close()
    assert page_of(root).periodic["nonfinite"]["parameters"] == 5


def test_between_fingerprints_the_hook_calls_nothing_else(monitor: lockstep.Monitor) -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    before, called_in = watch_optimizer_steps(monitor, optimizer, every=10), list[int]()
    inner = before.callback
    assert inner is not None

    def note(*args: Any) -> None:
        called_in.append(monitor.next_step)
        inner(*args)

    before.callback = note
    for step in (*range(32), *range(5, 12)):
        monitor.step(step=step)
        optimizer.step()
    assert called_in == [1, 10, 11, 20, 21, 30, 31, 6, 10, 11]


def test_a_parameter_of_nan_and_a_model_that_changes_shape_are_counted(
    root: Path, monitor: lockstep.Monitor, caplog: pytest.LogCaptureFixture
) -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    watch_optimizer_steps(monitor, optimizer, every=2)
    for number in range(10):
        if number == 5:
            model.bias.data[0] = math.nan
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))]})
        optimizer.step()
        monitor.step()
    monitor.close()
    periodic = page_of(root).periodic
    assert periodic["nonfinite"]["parameters"] > 0
    assert periodic["troubles"]["shape_change"] == 1
    assert "parameters have changed" in caplog.text
