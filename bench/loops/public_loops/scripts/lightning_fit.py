"""Lightning's Trainer with a module of one's own, a validation and the callback."""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lockstep.integrations.lightning import LockstepCallback
from public_loops.scripts.parts import HeldOut, Net, Samples

STEPS, EVAL_EVERY, RANKS, BATCH = 1000, 250, 2, 16


class LitAutoEncoder(LightningModule):
    """Reconstructs its input."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Net()

    def training_step(self, batch: Tensor) -> Tensor:
        """Mean squared error."""
        return nn.functional.mse_loss(self.model(batch), batch)

    def validation_step(self, batch: Tensor) -> Tensor:
        """The same."""
        return self.training_step(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main() -> None:
    """Trains on random vectors."""
    torch.manual_seed(0)
    trainer = Trainer(
        callbacks=[LockstepCallback()], accelerator="cpu", strategy="ddp", devices=RANKS,
        max_steps=STEPS, val_check_interval=EVAL_EVERY, limit_val_batches=4, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    data, held_out = Samples(4 * STEPS * RANKS * BATCH), HeldOut(8 * RANKS * BATCH)
    loader, held_out_loader = (DataLoader(each, batch_size=BATCH) for each in (data, held_out))
    trainer.fit(LitAutoEncoder(), loader, held_out_loader)


if __name__ == "__main__":
    main()
