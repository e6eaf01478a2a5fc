"""torchft: one replica group a process, which go on when another one fails.

torchft_lighthouse --min_replicas 1 --bind 127.0.0.1:29510 &
export TORCHFT_LIGHTHOUSE=http://127.0.0.1:29510 LOCKSTEP_JOB_ID=job-a
REPLICA_GROUP_ID=0 torchrun --master-port 29600 docs/examples/torchft_loop.py &
REPLICA_GROUP_ID=1 torchrun --master-port 29601 docs/examples/torchft_loop.py
"""

import argparse
import os
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

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
    parser.add_argument("--out", type=Path, default=Path("checkpoints"), help="not used")
    parser.add_argument("--groups", type=int, default=2, help="replica groups of the job")
    options = parser.parse_args()
    group = int(os.environ["REPLICA_GROUP_ID"])

    torch.manual_seed(0)
    layers = torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.Linear(WIDTH, VOCABULARY)
    plain_model = torch.nn.Sequential(*layers)
    plain_optimizer = torch.optim.AdamW(plain_model.parameters(), lr=1e-2)

    def load_state(state: dict[str, dict[str, torch.Tensor]]) -> None:
        plain_model.load_state_dict(state["model"])
        plain_optimizer.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(),
        min_replica_size=1,
        load_state_dict=load_state,
        state_dict=lambda: {
            "model": plain_model.state_dict(),
            "optimizer": plain_optimizer.state_dict(),
        },
        replica_id=f"group-{group}",
    )
    model = DistributedDataParallel(manager, plain_model)
    optimizer = Optimizer(manager, plain_optimizer)
    data = TensorDataset(torch.randint(VOCABULARY, (4096, LENGTH)))

    # To torchrun each group is a job of its own: rank and attempt within all groups are given here.
    position = {"RANK": str(group), "WORLD_SIZE": str(options.groups)}
    environment = os.environ | position | {"LOCKSTEP_FIRST_ATTEMPT": "0"}
    monitor = lockstep.attach(model, optimizer, environment=environment)
    for (tokens,) in monitor.prepare(DataLoader(data, batch_size=BATCH)):
        with monitor.phase("sync"):
            optimizer.zero_grad()  # begins the quorum
        loss = next_token_loss(model, tokens)
        loss.backward()
        monitor.enter_phase("sync")  # should_commit() waits for the gradients and the groups
        optimizer.step()
        monitor.step(step=manager.current_step(), loss=loss.detach(), samples=len(tokens))
        if manager.current_step() >= options.steps:
            break
    monitor.close()
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main()
