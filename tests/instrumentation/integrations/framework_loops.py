"""Loops of the Hugging Face Trainer, Lightning and Accelerate: a module that takes long to load."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from lightning.pytorch import LightningModule
from lightning.pytorch import Trainer as LightningTrainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import lockstep
from lockstep.integrations.lightning import LockstepCallback as LightningCallback
from lockstep.integrations.transformers import LockstepCallback as TransformersCallback

STEPS, ACCUMULATE, BATCH, LENGTH, RATE = 20, 2, 4, 8, 0.05
NEVER = -1  # micro-batch that raises


def options_of(root: Path, job_id: str) -> dict[str, Any]:
    return {"root": root, "environment": {"LOCKSTEP_JOB_ID": job_id}, "rows": 64}


def points() -> DataLoader[Any]:
    x = torch.randn(STEPS * ACCUMULATE * BATCH, 4, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=BATCH)


class Texts(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, fails_at: int = NEVER) -> None:
        self.fails_at = fails_at * BATCH

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if index >= len(self):
            raise IndexError(index)
        if index == self.fails_at:
            raise RuntimeError("no more")
        ids = torch.arange(index, index + LENGTH) % 32
        return {"input_ids": ids, "labels": ids}


class InOrder(Trainer):
    """Takes the samples in their order, so that a known batch raises."""

    def _get_train_sampler(self, *_: Any) -> torch.utils.data.Sampler[Any]:
        return torch.utils.data.SequentialSampler(Texts())


def train_transformers(root: Path, job_id: str, out: Path, fails_at: int = NEVER) -> None:
    size: dict[str, Any] = {
        "vocab_size": 32, "n_positions": LENGTH, "n_embd": 16, "n_layer": 1, "n_head": 2,
    }  # fmt: skip
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
        learning_rate=RATE,
        lr_scheduler_type="constant",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = InOrder(
        GPT2LMHeadModel(GPT2Config(**size)),
        arguments,
        train_dataset=Texts(fails_at),
        eval_dataset=Subset(Texts(), range(8)),
    )
    trainer.add_callback(TransformersCallback(trainer, **options_of(root, job_id)))
    trainer.train()


class Line(LightningModule):
    """A line through points; it may raise in a given batch of the training or the evaluation."""

    def __init__(self, fails_at: int = NEVER, evaluation_fails_at: int = NEVER) -> None:
        super().__init__()
        self.line = torch.nn.Linear(4, 1)
        self.fails_at, self.evaluation_fails_at = fails_at, evaluation_fails_at

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if batch_idx == self.fails_at:
            raise RuntimeError("no more")
        x, y = batch
        return torch.nn.functional.mse_loss(self.line(x), y)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if batch_idx == self.evaluation_fails_at:
            raise RuntimeError("no more in the evaluation either")
        self.line(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=RATE)


def fit_lightning(root: Path, job_id: str, out: Path, model: Line) -> None:
    checkpoint = ModelCheckpoint(dirpath=out, every_n_train_steps=10, save_top_k=-1)
    LightningTrainer(
        callbacks=[LightningCallback(**options_of(root, job_id)), checkpoint],
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
    ).fit(model, points(), points())


def train_lightning(root: Path, job_id: str, out: Path, fails_at: int = NEVER) -> None:
    fit_lightning(root, job_id, out, Line(fails_at))


def train_accelerate(root: Path, job_id: str, out: Path, fails_at: int = NEVER) -> None:
    """A loop as people write it, over two micro-batches a step."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
    line = torch.nn.Linear(4, 1)
    model, optimizer, loader = accelerator.prepare(
        line, torch.optim.SGD(line.parameters(), lr=RATE), points()
    )
    monitor = lockstep.attach(model, optimizer, **options_of(root, job_id))
    with closed_at_end(monitor):
        for number, (inputs, targets) in enumerate(monitor.prepare(loader)):
            fail_at(number, fails_at)
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                monitor.step(loss=loss, learning_rate=RATE)
            if number in {19, 39}:
                accelerator.save_state(str(out))
                with monitor.phase("eval"), torch.no_grad():
                    model(inputs)


@contextmanager
def closed_at_end(monitor: lockstep.Monitor) -> Iterator[None]:
    """Closes it as an exit of the process does."""
    try:
        yield
    except RuntimeError:
        monitor.close(failed=True)
        raise
    monitor.close()


def fail_at(number: int, fails_at: int) -> None:
    if number == fails_at:
        raise RuntimeError("no more")
