"""The real Lightning Trainer: its steps, phases, checkpoints and failures in the page."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

from lockstep.integrations.lightning import LockstepCallback
from lockstep_records.page.reader import Page, read_page, read_rows
from lockstep_records.spans import read_spans, spool_path

STEPS, ACCUMULATE, BATCH = 20, 2, 4


class Line(LightningModule):
    """A line through points; it may break in a given batch."""

    def __init__(self, breaks_at: int | None = None) -> None:
        super().__init__()
        self.line = torch.nn.Linear(4, 1)
        self.breaks_at = breaks_at

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if batch_idx == self.breaks_at:
            raise RuntimeError("no more")
        x, y = batch
        return torch.nn.functional.mse_loss(self.line(x), y)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if self.breaks_at is not None and batch_idx == 1:
            raise RuntimeError("no more in the evaluation either")
        self.line(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def loader() -> DataLoader[Any]:
    x = torch.randn(STEPS * ACCUMULATE * BATCH, 4, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=BATCH)


@pytest.fixture(name="root", scope="module")
def _root() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="lockstep-test-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def fit(root: Path, job_id: str, model: Line, out: Path) -> Page:
    callback = LockstepCallback(root=root, environment={"LOCKSTEP_JOB_ID": job_id}, rows=64)
    trainer = Trainer(
        callbacks=[callback, ModelCheckpoint(dirpath=out, every_n_train_steps=10, save_top_k=-1)],
        accelerator="cpu",
        devices=1,
        max_steps=STEPS,
        accumulate_grad_batches=ACCUMULATE,
        val_check_interval=20,
        limit_val_batches=2,
        num_sanity_val_steps=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    try:
        trainer.fit(model, loader(), loader())
    except RuntimeError:
        assert model.breaks_at is not None
    return read_page(root / "jobs" / job_id / "0" / "rank-00000.page")


pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


@pytest.fixture(name="page", scope="module")
def _page(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Page:
    return fit(root, "job-a", Line(), tmp_path_factory.mktemp("out"))


def test_a_step_is_an_optimizer_step_with_all_its_micro_batches(page: Page) -> None:
    assert page.state["steps"] == STEPS
    assert page.state["step"] == STEPS
    assert page.state["samples"] == STEPS * ACCUMULATE * BATCH
    assert page.phase == "done"


def test_every_phase_has_its_time_in_every_step(page: Page) -> None:
    for row in read_rows(page):
        for phase in ("data", "forward", "backward", "optimizer"):
            assert row[f"{phase}_seconds"] > 0, phase


def test_loss_and_learning_rate_are_those_of_the_step(page: Page) -> None:
    losses = [row["loss"] for row in read_rows(page)]
    assert None not in losses
    assert 0 < losses[-1] < losses[0] < 20
    assert page.state["learning_rate"] == 0.05


def test_evaluations_and_saves_have_their_time_and_are_counted(page: Page) -> None:
    assert page.state["checkpoints"]["ok"] == 2
    assert page.state["checkpoint_step"] == STEPS
    assert page.state["phase_seconds"]["eval"] > 0
    names = [span.name for span in read_spans(spool_path(page.path))]
    assert names.count("evaluation") == 2
    assert names.count("checkpoint") == 2


def test_training_that_fails_is_recorded_as_failed(root: Path, tmp_path: Path) -> None:
    page = fit(root, "job-b", Line(breaks_at=7), tmp_path)
    assert page.phase == "failed"
    assert page.state["steps"] == 3


def test_an_evaluation_that_fails_is_recorded_as_failed(root: Path, tmp_path: Path) -> None:
    page = fit(root, "job-c", Line(breaks_at=1000), tmp_path)
    assert page.phase == "failed"
    assert page.state["phase_seconds"]["eval"] > 0
