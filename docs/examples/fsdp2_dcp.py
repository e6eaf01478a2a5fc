"""FSDP2 with checkpoints by torch.distributed.checkpoint, from which it resumes.

lockstep run --nproc-per-node 2 docs/examples/fsdp2_dcp.py
torchrun --nproc-per-node 2 docs/examples/fsdp2_dcp.py
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp  # before attach, which then counts its checkpoints
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import lockstep

VOCABULARY, LENGTH, WIDTH, BATCH = 64, 16, 32, 4


def next_token_loss(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Cross entropy of each token but the first, shape []."""
    logits = model(tokens[:, :-1])
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def restore(model: torch.nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> int:
    """Loads the newest checkpoint; returns its step, 0 without one."""
    steps = [int(path.parent.name) for path in folder.glob("*/.metadata")]
    if not steps:
        return 0
    states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp.load(states, checkpoint_id=folder / str(max(steps)))
    set_state_dict(
        model, optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"]
    )
    return max(steps)


def main() -> None:
    """Trains three layers on random tokens."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps")
    parser.add_argument("--out", type=Path, default=Path("checkpoints"), help="for checkpoints")
    options = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    dist.init_process_group()
    if on_gpu:
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    mesh = init_device_mesh("cuda" if on_gpu else "cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    layers = (
        torch.nn.Embedding(VOCABULARY, WIDTH),
        torch.nn.Linear(WIDTH, WIDTH),
        torch.nn.Linear(WIDTH, VOCABULARY),
    )
    model = torch.nn.Sequential(*layers).to(mesh.device_type)
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = TensorDataset(torch.randint(VOCABULARY, (4096, LENGTH)))
    loader = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data))

    monitor = lockstep.attach(model, optimizer, mesh={"fsdp": dist.get_rank()})
    first_step = restore(model, optimizer, options.out)
    for step, (tokens,) in enumerate(monitor.prepare(loader), start=first_step + 1):
        loss = next_token_loss(model, tokens.to(mesh.device_type))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.step(step=step, loss=loss.detach(), tokens=tokens.numel(), samples=len(tokens))
        if step % 20 == 0:
            model_state, optimizer_state = get_state_dict(model, optimizer)
            states = {"model": model_state, "optimizer": optimizer_state}
            dcp.save(states, checkpoint_id=options.out / str(step))
        if step >= options.steps:
            break
    monitor.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
