"""Megatron-LM's timers enter the phases: here in a loop of its shape over megatron.core.

lockstep run --nproc-per-node 2 docs/examples/megatron_timers.py
torchrun --nproc-per-node 2 docs/examples/megatron_timers.py

In Megatron-LM, before ``pretrain`` builds its own:

    from megatron.training import global_vars
    global_vars._set_timers = lambda args: setattr(
        global_vars, "_GLOBAL_TIMERS",
        WatchedTimers(lockstep.attach(), args.timing_log_level, args.timing_log_option),
    )
"""

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.timers import Timers
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import lockstep

VOCABULARY, LENGTH, WIDTH, BATCH = 64, 16, 32, 4
PHASES = {
    "batch-generator": "data",
    "forward-compute": "forward",
    "backward-compute": "backward",
    "all-grads-sync": "sync",
    "optimizer": "optimizer",
    "save-checkpoint": "checkpoint",
    "evaluate": "eval",
}


class WatchedTimer:
    """One of Megatron's timers, which also enters the phase that it times."""

    def __init__(self, timer: Any, monitor: lockstep.Monitor, name: str) -> None:
        self._timer, self._monitor, self._phase = timer, monitor, PHASES[name]

    def start(self, barrier: bool = False) -> None:
        """Begins the phase."""
        self._monitor.enter_phase(self._phase)
        self._timer.start(barrier=barrier)

    def stop(self, barrier: bool = False) -> None:
        """Ends the phase; that of the optimizer ends the step."""
        self._timer.stop(barrier=barrier)
        self._monitor.enter_phase("other")
        if self._phase == "optimizer":
            self._monitor.step()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._timer, name)


class WatchedTimers(Timers):
    """Megatron's timers, which a monitor hears of."""

    def __init__(self, monitor: lockstep.Monitor, log_level: int, log_option: str) -> None:
        super().__init__(log_level, log_option)
        self.monitor = monitor

    def __call__(self, name: str, log_level: int | None = None) -> Any:
        """The timer of a name."""
        timer = super().__call__(name, log_level)
        return WatchedTimer(timer, self.monitor, name) if name in PHASES else timer


def next_token_loss(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Cross entropy of each token but the first, shape []."""
    logits = model(tokens[:, :-1])
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def main() -> None:
    """Trains a line of two layers on random tokens, timed as Megatron times its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps")
    parser.add_argument("--out", type=Path, default=Path("checkpoints"), help="for checkpoints")
    options = parser.parse_args()

    dist.init_process_group()
    torch.manual_seed(0)
    layers = torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.Linear(WIDTH, VOCABULARY)
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = TensorDataset(torch.randint(VOCABULARY, (4096, LENGTH)))
    batches = iter(DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data)))

    # Level 0: without a GPU its own timers, which synchronise the device, are dummies.
    timers = WatchedTimers(lockstep.attach(model, optimizer), 0, "minmax")
    for step in range(1, options.steps + 1):
        timers("batch-generator", log_level=2).start()
        (tokens,) = next(batches)
        timers("batch-generator").stop()
        timers("forward-compute", log_level=2).start()
        loss = next_token_loss(model, tokens)
        timers("forward-compute").stop()
        loss.backward()  # DDP waits in it, which attach sees apart; Megatron times both
        timers("optimizer", log_level=1).start()
        optimizer.step()
        optimizer.zero_grad()
        timers("optimizer").stop()
        if step % 20 == 0 and dist.get_rank() == 0:
            timers("save-checkpoint", log_level=0)
            options.out.mkdir(parents=True, exist_ok=True)
            torch.save(model.module.state_dict(), options.out / f"{step}.pt")
    timers.monitor.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
