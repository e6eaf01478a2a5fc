"""A trainer around FSDP2: an iterator of batches, accumulation, a metrics processor, a schedule."""

import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset

import lockstep
from public_loops.scripts.fsdp2 import VOCABULARY, Transformer

STEPS, LOG_EVERY, MICRO_STEPS, WARM_UP = 240, 10, 2, 10
LENGTH, BATCH = 48, 4


class Text(IterableDataset[dict[str, Tensor]]):
    """An endless stream of random tokens."""

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        while True:
            yield self.next_sample()

    def next_sample(self) -> dict[str, Tensor]:
        """Tokens and their successors, each [length]."""
        tokens = torch.randint(VOCABULARY, (LENGTH + 1,))
        return {"input": tokens[:-1], "labels": tokens[1:]}


class MetricsProcessor:
    """Throughput and loss every few steps."""

    def __init__(self) -> None:
        self.num_tokens, self.since = 0, time.perf_counter()

    def log(self, step: int, loss: Tensor, gradient_norm: float) -> None:
        """The mean loss of all ranks; printed by the first."""
        dist.all_reduce(loss)
        seconds = time.perf_counter() - self.since
        if dist.get_rank() == 0:
            mean = float(loss) / dist.get_world_size()
            print(f"step: {step} loss: {mean:.4f} grad_norm: {gradient_norm:.4f} "
                  f"tps: {self.num_tokens / seconds:.0f}")  # fmt: skip
        self.num_tokens, self.since = 0, time.perf_counter()


class Trainer:
    """Owns model, optimizer, schedule and metrics."""

    def __init__(self) -> None:
        self.mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp_shard",))
        torch.manual_seed(0)
        self.model = Transformer()
        for layer in self.model.layers:
            fully_shard(layer, mesh=self.mesh)
        fully_shard(self.model, mesh=self.mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=8e-4)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min(1.0, (step + 1) / WARM_UP)
        )
        self.metrics, self.step = MetricsProcessor(), 0
        self.dataloader = DataLoader(Text(), batch_size=BATCH)
        shard = {"fsdp": self.mesh.get_local_rank()}
        self.monitor = lockstep.attach(self.model, self.optimizer, mesh=shard)

    def batch_generator(self) -> Iterator[dict[str, Tensor]]:
        """Batches, whose tokens are counted."""
        batches = iter(self.monitor.prepare(self.dataloader))
        while True:
            batch = next(batches)
            self.metrics.num_tokens += batch["labels"].numel()
            yield batch

    def train_step(self, batches: Iterator[dict[str, Tensor]]) -> None:
        """One optimizer step of several micro-batches."""
        self.optimizer.zero_grad()
        losses = []
        for _ in range(MICRO_STEPS):
            batch = next(batches)
            logits = self.model(batch["input"])
            loss = functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
            (loss / MICRO_STEPS).backward()
            losses.append(loss.detach())
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        mean = torch.stack(losses).mean()
        self.monitor.step(loss=mean, tokens=MICRO_STEPS * BATCH * LENGTH)
        self.step += 1
        if self.step % LOG_EVERY == 0:
            full: Tensor = getattr(norm, "full_tensor", lambda: norm)()
            self.metrics.log(self.step, mean, float(full))

    def train(self) -> None:
        """All steps."""
        batches = self.batch_generator()
        while self.step < STEPS:
            self.train_step(batches)
        self.monitor.close()


def main() -> None:
    """Trains on random tokens."""
    dist.init_process_group("gloo")
    Trainer().train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
