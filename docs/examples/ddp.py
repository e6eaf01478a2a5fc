"""DDP with gradient accumulation, mixed precision, evaluation and checkpoints.

lockstep run --nproc-per-node 2 docs/examples/ddp.py
torchrun --nproc-per-node 2 docs/examples/ddp.py
"""

import argparse
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import lockstep

VOCABULARY, LENGTH, WIDTH, BATCH, ACCUMULATE = 64, 16, 32, 4, 2


def next_token_loss(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Cross entropy of each token but the first, shape []."""
    with torch.autocast(tokens.device.type, dtype=torch.bfloat16):
        logits = model(tokens[:, :-1])
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


def main() -> None:
    """Trains a line of two layers on random tokens."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps")
    parser.add_argument("--out", type=Path, default=Path("checkpoints"), help="for checkpoints")
    options = parser.parse_args()

    dist.init_process_group()
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count()) if on_gpu else "cpu"
    torch.manual_seed(0)
    layers = torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.Linear(WIDTH, VOCABULARY)
    model = DistributedDataParallel(torch.nn.Sequential(*layers).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = TensorDataset(torch.randint(VOCABULARY, (4096, LENGTH)))
    loader = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data))

    monitor = lockstep.attach(model, optimizer)  # after wrapping and init_process_group
    losses: list[torch.Tensor] = []
    for number, (batch,) in enumerate(monitor.prepare(loader), start=1):
        is_last = number % ACCUMULATE == 0
        with nullcontext() if is_last else model.no_sync():
            loss = next_token_loss(model, batch.to(device))
            (loss / ACCUMULATE).backward()
        losses.append(loss.detach())
        if not is_last:
            continue  # a step is an optimizer step: step() is called once, after the last part
        optimizer.step()
        optimizer.zero_grad()
        tokens = ACCUMULATE * BATCH * LENGTH
        monitor.step(loss=torch.stack(losses).mean(), tokens=tokens, samples=ACCUMULATE * BATCH)
        losses.clear()
        step = number // ACCUMULATE
        if step % 20 == 0:
            with monitor.phase("eval"), torch.no_grad():
                next_token_loss(model, data[:BATCH][0].to(device))
            if dist.get_rank() == 0:
                with monitor.checkpoint(step):
                    options.out.mkdir(parents=True, exist_ok=True)
                    torch.save(model.module.state_dict(), options.out / f"{step}.pt")
        if step == options.steps:
            break
    monitor.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
