"""Local SGD: each rank trains its own replica, and every so many steps all meet in a round.

In a round the ranks average how far they have come since the last one, and an outer SGD with
Nesterov's momentum takes that as its gradient. Without momentum and with a learning rate of 1 that
is the mean of the replicas; with 0.9 and 0.7 it is DiLoCo.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import lockstep
from lockstep_trainer.config import TrainConfig
from lockstep_trainer.layout.world import Layout, World
from lockstep_trainer.model.gpt import GPT
from lockstep_trainer.parallel.parallel_model import ParallelModel, compile_blocks


def local_sgd(gpt: GPT, config: TrainConfig, world: World, layout: Layout) -> ParallelModel:
    """The model on every rank, with rounds each --round-steps."""
    del world, layout
    compile_blocks(gpt, config)
    return _LocalModel(gpt, config)


class _LocalModel(ParallelModel):
    def __init__(self, gpt: GPT, config: TrainConfig) -> None:
        super().__init__(gpt, config)
        self._config = config
        self._shared: Tensor | None = None  # of the last round, flat
        self._velocity = torch.zeros(())

    @torch.no_grad()
    def exchange(self, step: int, monitor: lockstep.Monitor) -> int:
        """See ``ParallelModel``; meets when a round is due, and before all that needs one model."""
        config, parameters = self._config, [*self.module.parameters()]
        if self._shared is None:
            self._shared = parameters_to_vector(parameters)
            monitor.synced()
            return step
        every = (config.round_steps, config.eval_every, config.checkpoint_every)
        if any(config.due(step, steps) for steps in every):
            change = parameters_to_vector(parameters) - self._shared
            dist.all_reduce(change)
            change /= dist.get_world_size()
            self._velocity = config.outer_momentum * self._velocity + change
            ahead = change + config.outer_momentum * self._velocity
            self._shared = self._shared + config.outer_learning_rate * ahead
            vector_to_parameters(self._shared.clone(), parameters)
            monitor.synced()
        return step
