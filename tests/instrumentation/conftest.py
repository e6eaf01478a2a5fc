"""A folder on a tmpfs and a rank for every test; monitors end with the test that created them."""

import atexit
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import lockstep

from .rank_page import ENVIRONMENT


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Several threads of torch on a busy machine wait for each other, a time slice each."""
    torch.set_num_threads(1)


@pytest.fixture
def root(memory: Path) -> Path:
    return memory


@pytest.fixture(scope="module")
def single_rank_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store = f"file://{tmp_path_factory.mktemp('group') / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(name="monitor")
def _monitor(root: Path) -> Iterator[lockstep.Monitor]:
    monitor = lockstep.attach(root=root, environment=ENVIRONMENT, rows=256)
    assert monitor.enabled
    yield monitor
    monitor.close()


@pytest.fixture(autouse=True)
def monitors_end_with_the_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    ends: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
    monkeypatch.setattr(atexit, "register", lambda end, *args: ends.append((end, args)))
    yield
    for end, args in ends:
        end(*args)
