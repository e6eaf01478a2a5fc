"""A loop that marks nothing: its waits for data and its saves have their phases all the same."""

import io
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import lockstep
from lockstep_records.page.reader import read_rows

from ..rank_page import ENVIRONMENT, page_of

WAIT_SECONDS = 0.02


class SlowData(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(WAIT_SECONDS)
        return torch.full((4,), float(index))


@pytest.fixture(name="model")
def _model() -> torch.nn.Module:
    return torch.nn.Linear(4, 4)


@pytest.fixture(name="watched")
def _watched(root: Path, model: torch.nn.Module) -> Any:
    return lockstep.attach(model, root=root, environment=ENVIRONMENT, rows=64)


def test_the_wait_for_a_batch_is_data_whoever_iterates_the_loader(
    root: Path, watched: Any, model: torch.nn.Module
) -> None:
    for batch in DataLoader(SlowData()):
        model(batch).sum().backward()
        watched.step()
    watched.close()
    for row in read_rows(page_of(root)):
        assert row["phase_seconds"]["data"] >= WAIT_SECONDS
        assert row["phase_seconds"]["forward"] > 0


IDS = torch.ones(3, 8, dtype=torch.long)
MASK = (torch.arange(8) < 5).long().expand(3, 8)


@pytest.mark.parametrize(
    ("batch", "samples", "tokens"),
    [
        (((torch.ones(5, 2), torch.ones(5)), "names"), 5, 0),
        ({"names": ["a"], "input_ids": IDS}, 3, 24),
        ({"input_ids": IDS, "attention_mask": MASK}, 3, 15),
        ("text", 0, 0),
    ],
)
@pytest.mark.parametrize("native", ["on", "off"])
@pytest.mark.parametrize("prepared", [True, False])
def test_the_batches_of_a_step_tell_its_samples_and_tokens_without_padding(
    root: Path, batch: Any, samples: int, tokens: int, native: str, *, prepared: bool
) -> None:
    model = torch.nn.Linear(2, 2)
    environment = {**ENVIRONMENT, "LOCKSTEP_NATIVE": native}
    monitor = lockstep.attach(model, root=root, environment=environment, rows=64)
    batches: Any = [batch] * 4
    loader: DataLoader[Any] = DataLoader(batches, batch_size=None)
    for number, _ in enumerate(monitor.prepare(loader) if prepared else loader):
        model(torch.ones(2)).sum().backward()
        if number % 2:
            monitor.step()
            model.eval()
            with monitor.phase("eval"):
                list(monitor.prepare(loader))
            list(loader)
            model.train()
    monitor.step(samples=1, tokens=2)
    monitor.close()
    counts = [(row["samples"], row["tokens"]) for row in read_rows(page_of(root))]
    assert counts == [(2 * samples, 2 * tokens)] * 2 + [(1, 2)]


def test_what_the_loaders_workers_fetch_ahead_is_in_the_page(
    root: Path, watched: Any, model: torch.nn.Module
) -> None:
    loader = DataLoader(SlowData(), num_workers=2, prefetch_factor=3)
    for batch in watched.prepare(loader):
        model(batch).sum().backward()
        watched.step()
    with torch.no_grad():
        list(DataLoader(SlowData(), num_workers=1))
    watched.close()
    periodic = page_of(root).periodic
    assert (periodic["loader_workers"], periodic["batches_ahead"]) == (2, 6)


def test_an_evaluation_that_is_entered_keeps_its_waits(root: Path, watched: Any) -> None:
    watched.enter_phase("eval")
    with torch.no_grad():
        list(DataLoader(SlowData()))
    watched.step()
    watched.close()
    (row,) = read_rows(page_of(root))
    assert row["phase_seconds"]["data"] == 0
    assert row["phase_seconds"]["eval"] >= 4 * WAIT_SECONDS


def test_files_that_a_step_saves_are_one_checkpoint(
    root: Path, watched: Any, model: torch.nn.Module, tmp_path: Path
) -> None:
    for step in range(2):
        watched.step()
        torch.save(model.state_dict(), tmp_path / f"{step}.pt" if step else io.BytesIO())
        torch.save({"step": step}, tmp_path / f"{step}-state.pt")
    watched.step()
    torch.save(torch.ones(2), io.BytesIO())
    watched.step()
    watched.close()
    page = page_of(root)
    assert page.state["checkpoints"] == {"ok": 2, "failed": 0}
    seconds = [row["phase_seconds"]["checkpoint"] for row in read_rows(page)]
    assert seconds[0] == 0
    assert min(seconds[1:3]) > 0
    assert seconds[3] == 0


def test_a_save_inside_a_block_of_the_loop_is_counted_by_the_block(
    root: Path, watched: Any, model: torch.nn.Module, tmp_path: Path
) -> None:
    with watched.checkpoint(step=7):
        torch.save(model.state_dict(), tmp_path / "7.pt")
    watched.step()
    watched.close()
    page = page_of(root)
    assert page.state["checkpoints"]["ok"] == 1
    assert page.state["checkpoint_step"] == 7


def test_a_save_that_fails_is_a_failed_checkpoint_and_the_error_is_the_loops(
    root: Path, watched: Any, tmp_path: Path
) -> None:
    watched.step()
    with pytest.raises(RuntimeError):
        torch.save({}, tmp_path / "no such folder" / "1.pt")
    watched.step()
    watched.close()
    assert page_of(root).state["checkpoints"] == {"ok": 0, "failed": 1}
