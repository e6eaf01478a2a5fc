"""Parameter server: each rank trains by itself, and keeps one part of the parameters for all ranks.

After a step a rank sends to every keeper, by torch's RPC, how the step changed its part, and goes
on with what the keeper answers: the sum of all updates so far. It waits for answers and for no
other rank's step. The run ends when the first rank has done its steps: what a slow rank has not
done by then is lost, and nobody waits for it.
"""

import threading
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.distributed import rpc
from torch.distributed.distributed_c10d import PrefixStore
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import lockstep
from lockstep_trainer.config import TrainConfig
from lockstep_trainer.layout.world import Layout, World
from lockstep_trainer.model.gpt import GPT
from lockstep_trainer.parallel.parallel_model import ParallelModel, compile_blocks

_SERVING_THREADS = 2


def parameter_server(gpt: GPT, config: TrainConfig, world: World, layout: Layout) -> ParallelModel:
    """The model on every rank, with an exchange of parameters after each step."""
    del layout
    compile_blocks(gpt, config)
    return _ServedModel(gpt, config, world)


class _Part:
    values = torch.zeros(0)
    updates = furthest_step = 0
    lock = threading.Lock()


def _update(change: Tensor, step: int) -> tuple[Tensor, int, int]:
    """Adds what a step of some rank changed, in its keeper's process, called by RPC.

    Gives the values now, the updates that are in them, and the furthest step of any rank.
    """
    with _Part.lock:
        _Part.values += change
        _Part.updates += 1
        _Part.furthest_step = max(_Part.furthest_step, step)
        return _Part.values.clone(), _Part.updates, _Part.furthest_step


class _ServedModel(ParallelModel):
    def __init__(self, gpt: GPT, config: TrainConfig, world: World) -> None:
        super().__init__(gpt, config)
        self._config, self._world = config, world
        self._pulled: Tensor | None = None  # parameters by the last answers, flat
        self._last_updates = [0] * world.size  # in them, by keeper

    @torch.no_grad()
    def exchange(self, step: int, monitor: lockstep.Monitor) -> int:
        """See ``ParallelModel``; gives the last step of the run as soon as any rank has done it."""
        parameters, size = [*self.module.parameters()], self._world.size
        trained = parameters_to_vector(parameters)
        if self._pulled is None:
            self._pulled = trained
            _Part.values = trained.cpu().tensor_split(size)[self._world.rank].clone()
            _start_serving(self._world, self._config.timeout)
            monitor.synced(staleness_steps=0)
            return step
        # A part of it, as with averaged gradients: size ranks would go size times as far.
        change = (trained - self._pulled).cpu() / size
        with monitor.phase("sync"):
            futures = [
                rpc.rpc_async(str(keeper), _update, args=(part, step))
                for keeper, part in enumerate(change.tensor_split(size))
            ]
            answers = [future.wait() for future in futures]
        # Its own update is in the answer, and is not one that it lacked.
        updates = [answer[1] for answer in answers]
        pairs = zip(updates, self._last_updates, strict=True)
        staleness_steps = max(now - before - 1 for now, before in pairs)
        self._last_updates = updates
        self._pulled = torch.cat([answer[0] for answer in answers]).to(trained.device)
        vector_to_parameters(self._pulled.clone(), parameters)
        monitor.synced(staleness_steps=staleness_steps)
        furthest_step = max(answer[2] for answer in answers)
        return step if furthest_step < self._config.steps else self._config.steps


def _start_serving(world: World, timeout_seconds: float) -> None:
    """Joins the RPC of all ranks, which call this together."""
    assert world.store is not None
    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=_SERVING_THREADS, rpc_timeout=timeout_seconds
    )
    # As init_rpc does, on our store: that of torchrun still holds the names of an earlier attempt.
    private: Any = rpc
    private.dist_autograd._init(world.rank)  # noqa: SLF001  # see above
    store, name = PrefixStore("rpc", world.store), str(world.rank)
    tensorpipe = private.BackendType.TENSORPIPE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is old-fashioned in how it joins
        private._init_rpc_backend(  # noqa: SLF001  # see above
            tensorpipe, store, name, world.rank, world.size, options
        )
