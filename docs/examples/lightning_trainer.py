"""The Trainer of Lightning, with evaluation and checkpoints; it starts its own ranks, or not.

lockstep run --nproc-per-node 2 docs/examples/lightning_trainer.py
torchrun --nproc-per-node 2 docs/examples/lightning_trainer.py
python docs/examples/lightning_trainer.py
"""

import argparse
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

from lockstep.integrations.lightning import LockstepCallback

VOCABULARY, LENGTH, WIDTH, BATCH = 64, 16, 32, 4


class NextToken(LightningModule):
    """Predicts each token from the one before it."""

    def __init__(self) -> None:
        super().__init__()
        layers = torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.Linear(WIDTH, VOCABULARY)
        self.layers = torch.nn.Sequential(*layers)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Cross entropy of each token but the first."""
        (tokens,) = batch
        logits = self.layers(tokens[:, :-1])
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def validation_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """The same loss."""
        return self.training_step(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main() -> None:
    """Trains on random tokens."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps")
    parser.add_argument("--out", type=Path, default=Path("checkpoints"), help="for checkpoints")
    parser.add_argument("--devices", type=int, default=2, help="ranks of this node")
    options = parser.parse_args()

    torch.manual_seed(0)
    data = TensorDataset(torch.randint(VOCABULARY, (4096, LENGTH)))
    checkpoint = ModelCheckpoint(dirpath=options.out, every_n_train_steps=20, save_top_k=-1)
    trainer = Trainer(
        callbacks=[LockstepCallback(), checkpoint],
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        strategy="ddp",
        devices=options.devices,
        max_steps=options.steps,
        accumulate_grad_batches=2,
        val_check_interval=40,
        limit_val_batches=2,
        logger=False,
        enable_progress_bar=False,
    )
    held_out = TensorDataset(torch.randint(VOCABULARY, (64, LENGTH)))
    trainer.fit(
        NextToken(), DataLoader(data, batch_size=BATCH), DataLoader(held_out, batch_size=BATCH)
    )


if __name__ == "__main__":
    main()
