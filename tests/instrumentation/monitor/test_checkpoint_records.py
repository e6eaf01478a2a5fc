"""Checkpoints and restores in the page, reported by the loop or seen as savers run."""

import importlib
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save

import lockstep
from lockstep.patches import install

from ..rank_page import page_of
from ..strategies.watched import page_in, watched
from ..torch_versions import needs_async_save_of_one_process


def test_a_checkpoint_that_continues_after_its_block_ends_by_its_handle(
    root: Path, monitor: lockstep.Monitor
) -> None:
    with monitor.checkpoint(step=7) as saving:
        saving.later()
        time.sleep(0.005)
    assert page_of(root).state["checkpoints"] == {"ok": 0, "failed": 0}
    saving.wrote(100)
    saving.wrote(28)
    saving.verified()
    saving.end(seconds=2.5)
    saving.end(failed=True)
    page = page_of(root)
    assert page.state["checkpoints"] == {"ok": 1, "failed": 0}
    assert page.state["checkpoint_step"] == page.periodic["write_step"] == 7
    assert abs(page.state["checkpoint_wall_ns"] - time.time_ns()) < 5e9
    assert page.periodic["checkpoint_persisting_seconds"] == page.periodic["write_seconds"] == 2.5
    assert 0.005 <= page.periodic["checkpoint_blocking_seconds"] < 2.5
    assert (page.periodic["checkpoint_bytes"], page.periodic["checkpoints_verified"]) == (128, 1)


def test_a_checkpoint_that_fails_is_not_verified_and_not_durable(
    root: Path, monitor: lockstep.Monitor
) -> None:
    with suppress(OSError), monitor.checkpoint(step=7) as saving:
        saving.later()
        saving.verified()
        raise OSError("disk full")
    page = page_of(root)
    assert page.state["checkpoints"] == {"ok": 0, "failed": 1}
    assert page.state["checkpoint_step"] is None
    assert page.periodic["checkpoints_verified"] == 0
    assert page.periodic["troubles"]["span_exception"] == 1


def test_a_checkpoint_that_was_read_back_otherwise_is_neither_good_nor_failed(
    root: Path, monitor: lockstep.Monitor
) -> None:
    with monitor.checkpoint(step=7) as saving:
        saving.verified()
        saving.invalid()
    page = page_of(root)
    assert page.state["checkpoints"] == {"ok": 0, "failed": 0}
    assert page.periodic["checkpoints_invalid"] == 1
    assert (page.state["checkpoint_step"], page.periodic["checkpoints_verified"]) == (None, 0)


def test_seconds_of_checkpoints_count_by_bucket(root: Path, monitor: lockstep.Monitor) -> None:
    for seconds in (0.05, 0.1, 70.0, 2e4):
        with monitor.checkpoint() as saving:
            saving.end(seconds=seconds)
    periodic = page_of(root).periodic
    persisting = {k: v for k, v in periodic["checkpoint_persisting_buckets"].items() if v}
    assert persisting == {"0.1": 2, "180.0": 1, "more": 1}
    assert sum(periodic["checkpoint_blocking_buckets"].values()) == 4


def test_a_restore_records_where_it_fell_back_to(root: Path, monitor: lockstep.Monitor) -> None:
    with monitor.restore():
        time.sleep(0.002)
    with monitor.restore() as restoring:
        restoring.found(40)
    with monitor.restore() as restoring:
        restoring.found(20, requested=40, passed_over=2)
    with pytest.raises(OSError, match="gone"), monitor.restore():
        raise OSError("gone")
    periodic = page_of(root).periodic
    assert periodic["restores"] == {"ok": 1, "fallback": 1, "failed": 1}
    assert (periodic["restore_requested"], periodic["restored_step"], periodic["passed_over"]) == (
        40,
        20,
        2,
    )
    assert periodic["restore_seconds"] >= 0.002
    assert page_of(root).phase == "init"


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_checkpoints_of_dcp_count_whoever_imported_its_functions(
    root: Path, tmp_path: Path
) -> None:
    state, monitor = {"weight": torch.ones(1000)}, watched(root, torch.nn.Linear(1, 1))
    save(state, checkpoint_id=tmp_path / "step-30")
    with pytest.raises(CheckpointException):
        load(state, checkpoint_id=tmp_path / "step-50")
    load(state, checkpoint_id=tmp_path / "step-30")
    assert page_in(root).periodic["write_step"] == 30
    with monitor.checkpoint(step=40):
        save(state, checkpoint_id=tmp_path / "step-40")
    monitor.close()
    save(state, checkpoint_id=tmp_path / "step-60")
    page = page_in(root)
    assert page.state["checkpoints"] == {"ok": 2, "failed": 0}
    assert page.state["checkpoint_step"] == 40
    assert page.periodic["checkpoint_bytes"] > 4000
    assert page.periodic["checkpoint_blocking_seconds"] > 0
    assert page.periodic["checkpoint_persisting_seconds"] >= page.periodic["write_seconds"] > 0
    assert page.periodic["restores"] == {"ok": 1, "fallback": 0, "failed": 1}
    assert page.periodic["restored_step"] == 30


@needs_async_save_of_one_process
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_an_asynchronous_save_counts_until_its_thread_has_written(
    root: Path, tmp_path: Path
) -> None:
    state, monitor = {"weight": torch.ones(1000)}, watched(root, torch.nn.Linear(1, 1))
    save(state, checkpoint_id=tmp_path / "step-30")
    written = async_save(state, checkpoint_id=str(tmp_path / "step-40"), no_dist=True)
    assert isinstance(written, Future)
    has_ended = threading.Event()
    written.add_done_callback(lambda _: has_ended.set())  # after ours
    assert has_ended.wait(20)
    monitor.close()
    page = page_in(root)
    assert page.state["checkpoints"] == {"ok": 2, "failed": 0}
    assert page.state["checkpoint_step"] == page.periodic["write_step"] == 40
    assert page.periodic["checkpoint_bytes"] > 2 * 4000
    assert page.periodic["checkpoint_persisting_seconds"] > page.periodic["write_seconds"] > 0


def test_what_a_thread_beside_the_loop_saves_is_a_checkpoint_that_no_step_waits_for(
    root: Path, tmp_path: Path
) -> None:
    monitor = watched(root, torch.nn.Linear(1, 1))

    def save_two() -> None:
        for name in ("model", "optimizer"):
            torch.save({name: torch.ones(3)}, tmp_path / name)

    with ThreadPoolExecutor(1) as pool:
        for _ in range(2):
            pool.submit(save_two).result()
            monitor.step()
        with monitor.checkpoint(7) as saving:
            saving.later()
        pool.submit(save_two).result()  # what the block began
        saving.end()
    monitor.close()
    page = page_in(root)
    assert page.state["checkpoints"] == {"ok": 3, "failed": 0}
    assert sum(page.periodic["checkpoint_persisting_buckets"].values()) == 3
    assert sum(page.periodic["checkpoint_blocking_buckets"].values()) == 1


def test_a_saver_that_is_loaded_later_is_seen_and_an_object_that_lies_is_saved(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "joblib.py").write_text("def dump(value, path):\n    return [path]\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "joblib", raising=False)
    # Another test of this process may have loaded the true one.
    monkeypatch.setattr(install, "_in_torch", install._in_torch - {("joblib", "dump")})
    monitor = watched(root, torch.nn.Linear(1, 1))

    class Liar:
        @property  # type: ignore[misc]  # it lies
        def __class__(self) -> Any:
            raise RuntimeError("no")

    monitor.step()
    assert importlib.import_module("joblib").dump(Liar(), "path") == ["path"]
    monkeypatch.delitem(sys.modules, "joblib")
    monitor.step()
    np.savez(tmp_path / "parts", weight=np.ones(3))
    monitor.close()
    assert page_in(root).state["checkpoints"] == {"ok": 2, "failed": 0}
    assert page_in(root).state["internal_errors"] == 0
