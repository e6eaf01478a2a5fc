"""A GPT trained by a Trainer class: a DataLoader with workers, autocast, snapshots, tests."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import lockstep

EPOCHS, STEPS_PER_EPOCH, TEST_STEPS, RANKS, BATCH = 4, 80, 5, 4, 8
VOCABULARY, BLOCK, WIDTH = 40, 32, 48


class CharDataset(Dataset[tuple[Tensor, Tensor]]):
    """Windows of a text and the same shifted by one."""

    def __init__(self, size: int) -> None:
        self.data, self.size = torch.randint(VOCABULARY, (size + BLOCK + 1,)), size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        chunk = self.data[index : index + BLOCK + 1]
        return chunk[:-1], chunk[1:]


class TestCharDataset(CharDataset):
    """The same of held-out text."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return super().__getitem__(index)


class GPT(nn.Module):
    """A causal encoder over characters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True, dropout=0.1)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [batch, block, vocabulary], and the loss."""
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        logits = self.head(self.blocks(self.embedding(tokens), mask=mask, is_causal=True))
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Trainer:
    """Runs epochs over a loader, and keeps a snapshot of the newest one."""

    def __init__(self, train: Dataset[Any], test: Dataset[Any]) -> None:
        self.rank = dist.get_rank()
        self.train_loader, self.test_loader = self._loader(train), self._loader(test)
        self.model = DistributedDataParallel(GPT())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self.monitor = lockstep.attach(self.model, self.optimizer)

    def _loader(self, dataset: Dataset[Any]) -> DataLoader[Any]:
        sampler: DistributedSampler[Any] = DistributedSampler(dataset)
        return DataLoader(dataset, batch_size=BATCH, num_workers=1, sampler=sampler)

    def _run_batch(self, source: Tensor, targets: Tensor, *, train: bool) -> float:
        with torch.set_grad_enabled(train):
            _, loss = self.model(source, targets)
        if train:
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
        return float(loss)

    def _run_epoch(self, epoch: int, loader: DataLoader[Any], *, train: bool) -> None:
        sampler = loader.sampler
        assert isinstance(sampler, DistributedSampler)
        sampler.set_epoch(epoch)
        self.model.train(train)
        batches = self.monitor.prepare(loader) if train else loader
        for number, (source, targets) in enumerate(batches):
            loss = self._run_batch(source, targets, train=train)
            if train:
                self.monitor.step(loss=loss, tokens=source.numel(), samples=len(source))
            if number % 40 == 0 and self.rank == 0:
                print(f"epoch {epoch} | iteration {number} | loss {loss:.5f}")

    def _save_snapshot(self, epoch: int) -> None:
        state = {"model": self.model.module.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save({**state, "epoch": epoch}, Path("snapshot.pt"))

    def train(self) -> None:
        """All epochs, each with its test."""
        for epoch in range(EPOCHS):
            self._run_epoch(epoch, self.train_loader, train=True)
            if self.rank == 0:
                self._save_snapshot(epoch)
            with self.monitor.phase("eval"):
                self._run_epoch(epoch, self.test_loader, train=False)
        self.monitor.close()


def main() -> None:
    """Trains over random text."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    samples = BATCH * RANKS
    train = CharDataset(samples * STEPS_PER_EPOCH)
    test = TestCharDataset(samples * TEST_STEPS)
    Trainer(train, test).train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
