"""DeepSpeed's engine with ZeRO, gradient accumulation and checkpoints.

lockstep run --nproc-per-node 2 docs/examples/deepspeed_engine.py
torchrun --nproc-per-node 2 docs/examples/deepspeed_engine.py
deepspeed --num_gpus 2 docs/examples/deepspeed_engine.py
"""

import argparse
from pathlib import Path

import deepspeed
import torch
from torch.utils.data import TensorDataset

import lockstep

VOCABULARY, LENGTH, WIDTH, BATCH, ACCUMULATE = 64, 16, 32, 4, 2
CONFIG = {
    "train_micro_batch_size_per_gpu": BATCH,
    "gradient_accumulation_steps": ACCUMULATE,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
}


def next_token_loss(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Cross entropy of each token but the first, shape []."""
    logits = model(tokens[:, :-1])
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def main() -> None:
    """Trains a line of two layers on random tokens."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--local_rank", type=int, help="of DeepSpeed's launcher")
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps")
    parser.add_argument("--out", type=Path, default=Path("checkpoints"), help="for checkpoints")
    options = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    deepspeed.init_distributed("nccl" if on_gpu else "gloo")
    torch.manual_seed(0)
    layers = torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.Linear(WIDTH, VOCABULARY)
    plain_model = torch.nn.Sequential(*layers)
    engine, _, loader, _ = deepspeed.initialize(
        model=plain_model,
        model_parameters=plain_model.parameters(),
        training_data=TensorDataset(torch.randint(VOCABULARY, (4096, LENGTH))),
        config=CONFIG,
    )

    monitor = lockstep.attach(engine, engine.optimizer)  # after deepspeed.initialize
    for (tokens,) in monitor.prepare(loader):
        loss = next_token_loss(engine, tokens.to(engine.device))
        engine.backward(loss)
        engine.step()
        if engine.micro_steps % ACCUMULATE:
            continue  # engine.step() has only counted a micro-batch
        monitor.step(loss=loss.detach(), samples=ACCUMULATE * len(tokens))
        if engine.global_steps % 20 == 0:
            engine.save_checkpoint(str(options.out))  # seen: DeepSpeed writes by torch.save
        if engine.global_steps == options.steps:
            break
    monitor.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
