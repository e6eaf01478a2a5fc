"""A loop of one's own over an Accelerator, with evaluation and checkpoints.

lockstep run --nproc-per-node 2 docs/examples/accelerate_loop.py
torchrun --nproc-per-node 2 docs/examples/accelerate_loop.py
accelerate launch --num_processes 2 docs/examples/accelerate_loop.py
"""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import lockstep

VOCABULARY, LENGTH, WIDTH, BATCH = 64, 16, 32, 4


def next_token_loss(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Cross entropy of each token but the first, shape []."""
    logits = model(tokens[:, :-1])
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def main() -> None:
    """Trains a line of two layers on random tokens."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps")
    parser.add_argument("--out", type=Path, default=Path("checkpoints"), help="for checkpoints")
    options = parser.parse_args()

    accelerator = Accelerator(cpu=not torch.cuda.is_available(), gradient_accumulation_steps=2)
    torch.manual_seed(0)
    layers = torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.Linear(WIDTH, VOCABULARY)
    plain_model = torch.nn.Sequential(*layers)
    data = TensorDataset(torch.randint(VOCABULARY, (4096, LENGTH)))
    held_out = TensorDataset(torch.randint(VOCABULARY, (16, LENGTH)))
    model, optimizer, loader, held_out_loader = accelerator.prepare(
        plain_model,
        torch.optim.AdamW(plain_model.parameters(), lr=1e-2),
        DataLoader(data, batch_size=BATCH),
        DataLoader(held_out, batch_size=BATCH),
    )
    step = 0
    monitor = lockstep.attach(model, optimizer)
    for (tokens,) in monitor.prepare(loader):
        with accelerator.accumulate(model):
            loss = next_token_loss(model, tokens)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if not accelerator.sync_gradients:
            continue
        step += 1
        monitor.step(step=step, loss=loss, tokens=2 * tokens.numel())
        if step % 20 == 0:
            model.eval()
            with torch.no_grad():
                for (held_out_tokens,) in held_out_loader:
                    next_token_loss(model, held_out_tokens)
            model.train()
            accelerator.save_state(str(options.out / str(step)))
        if step == options.steps:
            break
    monitor.close()
    accelerator.end_training()


if __name__ == "__main__":
    main()
