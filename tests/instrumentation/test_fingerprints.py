"""Fingerprints of replicas: equal while they are, different by one bit."""

import math
import shutil
import tempfile
from pathlib import Path

import pytest
import torch

import lockstep
from lockstep.fingerprint import Fingerprints
from lockstep_records.page_reader import Page
from lockstep_records.replicas import fingerprints_of

from .one_rank import ENVIRONMENT, page_of


def trained(root: Path, monitor: lockstep.Disabled, flip_at: int | None = None) -> Page:
    torch.manual_seed(7)
    first = torch.nn.Linear(20, 50)
    model = torch.nn.Sequential(first, torch.nn.Linear(50, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    Fingerprints(monitor, every=10).watch(optimizer)
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


def test_equal_replicas_have_equal_fingerprints_and_one_bit_makes_them_differ() -> None:
    found = []
    for flip_at in (None, None, 85):
        root = Path(tempfile.mkdtemp(prefix="lockstep-test-", dir="/dev/shm"))
        monitor = lockstep.attach(root=root, environment=ENVIRONMENT, rows=8)
        found.append(fingerprints_of(trained(root, monitor, flip_at)))
        shutil.rmtree(root)
    first, same, flipped = found
    assert sorted(first) == [20, 30, 40, 50, 60, 70, 80, 90]
    assert first == same
    assert {step for step in first if first[step] != flipped[step]} == {90}
    assert len(set(first.values())) == len(first)


def test_a_parameter_of_nan_is_told_and_a_model_that_changes_shape_too(
    root: Path, monitor: lockstep.Disabled, caplog: pytest.LogCaptureFixture
) -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    Fingerprints(monitor, every=2).watch(optimizer)
    for number in range(10):
        if number == 5:
            model.bias.data[0] = math.nan
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))]})
        optimizer.step()
        monitor.step()
    monitor.close()
    seldom = page_of(root).seldom
    assert seldom["nonfinite"]["parameters"] > 0
    assert seldom["troubles"]["shape_change"] == 1
    assert "parameters have changed" in caplog.text
