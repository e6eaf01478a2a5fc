"""The real Hugging Face Trainer: its steps, phases, checkpoints and failures in the page."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from lockstep.integrations.transformers import LockstepCallback
from lockstep_records.page.reader import Page, read_page, read_rows
from lockstep_records.spans import Span, read_spans, spool_path

STEPS, ACCUMULATE, BATCH, LENGTH = 20, 2, 2, 8


class Texts(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if index >= len(self):
            raise IndexError(index)
        ids = torch.arange(index, index + LENGTH) % 32
        return {"input_ids": ids, "labels": ids}


class Broken(Texts):
    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        raise OSError("shard has gone")


@pytest.fixture(name="root", scope="module")
def _root() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="lockstep-test-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def trainer_of(root: Path, job_id: str, data: Dataset[Any], out: Path) -> Trainer:
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=32, n_positions=LENGTH, n_embd=16, n_layer=1, n_head=2)
    )
    arguments = TrainingArguments(
        output_dir=str(out),
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=8,
        gradient_accumulation_steps=ACCUMULATE,
        eval_strategy="steps",
        eval_steps=10,
        save_strategy="steps",
        save_steps=10,
        logging_steps=5,
        learning_rate=0.01,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    held_out = torch.utils.data.Subset(Texts(), range(8))
    trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=held_out)
    environment = {"LOCKSTEP_JOB_ID": job_id}
    trainer.add_callback(LockstepCallback(trainer, root=root, environment=environment, rows=64))
    return trainer


def page_of(root: Path, job_id: str) -> Page:
    return read_page(root / "jobs" / job_id / "0" / "rank-00000.page")


@pytest.fixture(name="page", scope="module")
def _page(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Page:
    trainer_of(root, "job-a", Texts(), tmp_path_factory.mktemp("out")).train()
    return page_of(root, "job-a")


def spans(page: Page, name: str) -> list[Span]:
    return [span for span in read_spans(spool_path(page.path)) if span.name == name]


def test_a_step_is_an_optimizer_step_with_all_its_micro_batches(page: Page) -> None:
    assert page.state["steps"] == STEPS
    assert page.state["step"] == STEPS
    assert page.state["samples"] == STEPS * BATCH * ACCUMULATE
    assert page.state["tokens"] == page.state["samples"] * LENGTH
    assert page.phase == "done"


def test_every_phase_has_its_time_in_every_step(page: Page) -> None:
    for row in read_rows(page):
        for phase in ("data", "forward", "backward", "optimizer"):
            assert row[f"{phase}_seconds"] > 0, phase


def test_loss_and_learning_rate_are_those_of_the_step(page: Page) -> None:
    losses = [row["loss"] for row in read_rows(page)]
    assert None not in losses
    assert 1 < losses[-1] < losses[0] < 5
    assert 0 < page.state["learning_rate"] < 0.01


def test_evaluations_and_saves_have_their_time_and_are_counted(page: Page) -> None:
    assert page.state["checkpoints"]["ok"] == 2
    assert page.state["checkpoint_step"] == STEPS
    assert page.state["phase_seconds"]["eval"] > 0
    assert page.state["phase_seconds"]["checkpoint"] > 0
    assert [span.attributes["step"] for span in spans(page, "evaluation")] == [10, 20]
    assert len(spans(page, "checkpoint")) == 2


def test_training_that_fails_is_recorded_as_failed(root: Path, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="shard"):
        trainer_of(root, "job-b", Broken(), tmp_path).train()
    assert page_of(root, "job-b").phase == "failed"
