"""An engine of model, optimizer and gradients with ``backward`` and ``step``, as DeepSpeed."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler

import lockstep
from public_loops.scripts.parts import Net, Samples

STEPS = 2200
CONFIG = {"train_micro_batch_size_per_gpu": 16, "gradient_accumulation_steps": 2,
          "gradient_clipping": 1.0, "optimizer": {"lr": 1e-3}}  # fmt: skip


class Engine:
    """Reduces all gradients as one flat tensor, at the end of an accumulation."""

    def __init__(self, model: nn.Module, config: dict[str, Any]) -> None:
        self.module, self.config, self.micro_steps, self.global_steps = model, config, 0, 0
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0)
        self.optimizer = torch.optim.AdamW(model.parameters(), **config["optimizer"])

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The model's output."""
        out: Tensor = self.module(*inputs)
        return out

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether the next ``step`` is an optimizer step."""
        return (self.micro_steps + 1) % int(self.config["gradient_accumulation_steps"]) == 0

    def backward(self, loss: Tensor) -> None:
        """Adds to the gradients, and reduces them where the accumulation ends."""
        (loss / self.config["gradient_accumulation_steps"]).backward()
        if self.is_gradient_accumulation_boundary():
            gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            dist.all_reduce(flat)
            flat /= dist.get_world_size()
            parts = flat.split([gradient.numel() for gradient in gradients])
            for gradient, part in zip(gradients, parts, strict=True):
                gradient.copy_(part.view_as(gradient))

    def step(self) -> None:
        """The optimizer's step, where the accumulation ends."""
        if self.is_gradient_accumulation_boundary():
            clipping = self.config["gradient_clipping"]
            nn.utils.clip_grad_norm_(self.module.parameters(), clipping)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.global_steps += 1
        self.micro_steps += 1


def main() -> None:
    """Trains on random vectors."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    engine = Engine(Net(), CONFIG)
    batch_size, micro_steps = 16, 2
    data = Samples(STEPS * micro_steps * batch_size * dist.get_world_size())
    loader = DataLoader(data, batch_size=batch_size, sampler=DistributedSampler(data))
    monitor = lockstep.attach(engine.module, engine.optimizer)
    for inputs in monitor.prepare(loader):
        loss = nn.functional.mse_loss(engine(inputs), inputs)
        is_step = engine.is_gradient_accumulation_boundary()
        engine.backward(loss)
        engine.step()
        if is_step:
            monitor.step(loss=loss.item(), samples=micro_steps * batch_size)
    monitor.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
