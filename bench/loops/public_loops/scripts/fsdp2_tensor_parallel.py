"""FSDP2 over replicas of two tensor-parallel ranks each, on a mesh of 2 x 2."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional

import lockstep

STEPS, TENSOR_PARALLEL = 180, 2
WIDTH, HIDDEN, LAYERS, BATCH = 64, 256, 3, 64


class FeedForward(nn.Module):
    """A gated perceptron beside a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.gate, self.up = nn.Linear(WIDTH, HIDDEN), nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, width] to the same."""
        normed = self.norm(x)
        out: Tensor = x + self.down(functional.silu(self.gate(normed)) * self.up(normed))
        return out


class Model(nn.Module):
    """Layers in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(FeedForward() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, width] to the same."""
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(x)
        return out


def make_batch(generator: torch.Generator) -> Tensor:
    """Random inputs [batch, width]; the same on the ranks of a replica."""
    return torch.rand(BATCH, WIDTH, generator=generator)


def main() -> None:
    """Trains towards zero."""
    dist.init_process_group("gloo")
    shape = dist.get_world_size() // TENSOR_PARALLEL, TENSOR_PARALLEL
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = Model()
    plan = {"gate": ColwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
    for layer in model.layers:
        parallelize_module(layer, mesh["tp"], plan)
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    replica, part = mesh["dp"].get_local_rank(), mesh["tp"].get_local_rank()
    generator = torch.Generator().manual_seed(replica)
    monitor = lockstep.attach(model, optimizer, mesh={"fsdp": replica, "tp": part})
    for _ in range(STEPS):
        with monitor.phase("data"):
            batch = make_batch(generator)
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.step(loss=loss.detach(), samples=len(batch))
    monitor.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
