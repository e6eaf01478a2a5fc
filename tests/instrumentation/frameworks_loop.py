"""Trains by transformers, lightning or accelerate on every rank of a job."""

import sys
import warnings
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

STEPS, BATCH, LENGTH = 6, 2, 8


class Texts(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return STEPS * BATCH * 2

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.arange(index, index + LENGTH) % 32
        return {"input_ids": ids, "labels": ids}


def with_transformers(out: Path) -> None:
    from transformers import (  # noqa: PLC0415  # one framework a process
        GPT2Config,
        GPT2LMHeadModel,
        Trainer,
        TrainingArguments,
    )

    from lockstep.integrations.transformers import LockstepCallback  # noqa: PLC0415  # as above

    shape = GPT2Config(vocab_size=32, n_positions=LENGTH, n_embd=16, n_layer=1, n_head=2)
    arguments = TrainingArguments(
        output_dir=str(out),
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = Trainer(GPT2LMHeadModel(shape), arguments, train_dataset=Texts())
    trainer.add_callback(LockstepCallback(trainer))
    trainer.train()


def with_lightning(out: Path) -> None:
    from lightning.pytorch import LightningModule, Trainer  # noqa: PLC0415  # one a process

    from lockstep.integrations.lightning import LockstepCallback  # noqa: PLC0415  # as above

    class Line(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(LENGTH, 1)

        def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            loss: torch.Tensor = self.line(batch["input_ids"].float() / 32).square().mean()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.05)

    Trainer(
        callbacks=[LockstepCallback()],
        accelerator="cpu",
        strategy="ddp",
        devices=2,
        max_steps=STEPS,
        default_root_dir=out,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    ).fit(Line(), DataLoader(Texts(), batch_size=BATCH))


def with_accelerate(_out: Path) -> None:
    from accelerate import Accelerator  # noqa: PLC0415  # one framework a process

    from lockstep.integrations.accelerate import watched  # noqa: PLC0415  # as above

    accelerator = Accelerator(cpu=True)
    line = torch.nn.Linear(LENGTH, 1)
    loader = DataLoader(Texts(), batch_size=BATCH)
    parts = (line, torch.optim.SGD(line.parameters(), lr=0.05), loader)
    model, optimizer, batches = accelerator.prepare(*parts)
    with watched(accelerator, model, optimizer) as watch:
        for batch in watch.batches(batches):
            accelerator.backward(model(batch["input_ids"].float() / 32).square().mean())
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    loops = {
        "transformers": with_transformers,
        "lightning": with_lightning,
        "accelerate": with_accelerate,
    }
    loops[sys.argv[1]](Path(sys.argv[2]))
