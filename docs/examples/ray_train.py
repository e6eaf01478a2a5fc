"""Ray Train: the three lines in the function that TorchTrainer runs on each worker.

python docs/examples/ray_train.py
"""

import argparse
import os
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch.utils.data import DataLoader, TensorDataset

VOCABULARY, LENGTH, WIDTH, BATCH = 64, 16, 32, 4


def next_token_loss(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Cross entropy of each token but the first, shape []."""
    logits = model(tokens[:, :-1])
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def train_func(config: dict[str, Any]) -> None:
    """Trains a line of two layers on random tokens, in each worker."""
    import lockstep  # noqa: PLC0415  # the function travels to the workers, the module need not

    torch.manual_seed(0)
    layers = torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.Linear(WIDTH, VOCABULARY)
    model = prepare_model(torch.nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = TensorDataset(torch.randint(VOCABULARY, (4096, LENGTH)))
    loader = prepare_data_loader(DataLoader(data, batch_size=BATCH))

    monitor = lockstep.attach(model, optimizer)  # Ray has initialised the process group
    for step, (tokens,) in enumerate(monitor.prepare(loader), start=1):
        loss = next_token_loss(model, tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.step(loss=loss.detach(), samples=len(tokens), tokens=tokens.numel())
        if step % 20 == 0:
            with monitor.phase("other"):  # it waits for the other workers
                ray.train.report({"loss": float(loss)})
        if step == config["steps"]:
            break
    monitor.close()


def main() -> None:
    """Starts Ray on this machine, and a worker a rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps")
    parser.add_argument("--out", type=Path, default=Path("checkpoints"), help="for Ray's results")
    parser.add_argument("--workers", type=int, default=2, help="ranks")
    options = parser.parse_args()

    ray.init(num_cpus=max(os.cpu_count() or 1, options.workers + 1), include_dashboard=False)
    trainer = TorchTrainer(
        train_func,
        train_loop_config={"steps": options.steps},
        scaling_config=ScalingConfig(
            num_workers=options.workers, use_gpu=torch.cuda.is_available()
        ),
        run_config=RunConfig(storage_path=str(options.out.absolute())),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
