"""How replicas agree on their parameters: DDP, FSDP2, HSDP, local SGD and experts."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import lockstep
from lockstep_trainer.config import TrainConfig
from lockstep_trainer.layout.world import Layout, World
from lockstep_trainer.model.gpt import GPT, Experts, Mixture, apply_experts
from lockstep_trainer.parallel.model_parallel import PipelinedModel, shard_layers, split_into_stages
from lockstep_trainer.parallel.parallel_model import ParallelModel, compile_blocks


def data_parallel(gpt: GPT, config: TrainConfig, world: World, layout: Layout) -> ParallelModel:
    """The model in DDP: rank 0's weights everywhere, gradients all-reduced in buckets."""
    del layout
    compile_blocks(gpt, config)
    # DDP wants the device on a GPU, and None on a CPU.
    devices = [world.device] if world.device.type == "cuda" else None
    model = DistributedDataParallel(gpt, device_ids=devices)
    return ParallelModel(
        gpt,
        config,
        call=model,
        # Without no_sync DDP would all-reduce after every accumulated batch, not once a step.
        gradient_sync=lambda is_last: nullcontext() if is_last else model.no_sync(),
    )


def hybrid(gpt: GPT, config: TrainConfig, world: World, layout: Layout) -> ParallelModel:
    """Stages along pp, the layers of each split along tp, parameters sharded along dp x fsdp."""
    mesh = layout.device_mesh(world.device, ("pp", "tp", *DATA_AXES))
    stages = split_into_stages(gpt, config, mesh["pp"]) if layout.pp > 1 else {0: gpt}
    for stage in stages.values():
        if layout.tp > 1:
            # Before FSDP2, which then shards the tensor-parallel shards.
            shard_layers(stage, mesh["tp"])
        compile_blocks(stage, config)
        shard_parameters(stage, config, data_mesh(mesh, layout))
    if layout.pp > 1:
        return PipelinedModel(stages, config, mesh["pp"], world.device)
    return ParallelModel(gpt, config, gradient_sync=gradient_sync_of(gpt))


DATA_AXES = ("dp", "fsdp")


def fully_sharded(gpt: GPT, config: TrainConfig, world: World, layout: Layout) -> ParallelModel:
    """The model by FSDP2, each block gathered separately."""
    mesh = layout.device_mesh(world.device, DATA_AXES)
    compile_blocks(gpt, config)
    shard_parameters(gpt, config, data_mesh(mesh, layout))
    return ParallelModel(gpt, config, gradient_sync=gradient_sync_of(gpt))


def data_mesh(mesh: DeviceMesh, layout: Layout) -> DeviceMesh:
    """The axes whose ranks see different data; 2-D with several replicas, for HSDP."""
    return mesh[DATA_AXES] if layout.dp > 1 else mesh["fsdp"]


def shard_parameters(gpt: GPT, config: TrainConfig, mesh: DeviceMesh) -> None:
    """Shards the model in place; gradients are summed in float32 whatever the compute precision."""
    compute = torch.bfloat16 if config.dtype == "bfloat16" else None
    shard = partial(
        fully_shard,
        mesh=mesh,
        reshard_after_forward=not config.keep_gathered,
        mp_policy=MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32),
    )
    # Blocks first: fully_shard gives the root only the parameters that no child has taken.
    for block in gpt.blocks.values():
        shard(block)
    shard(gpt)


def gradient_sync_of(gpt: GPT) -> Callable[[bool], AbstractContextManager[None]]:
    """A context for one batch, in which gradients are reduced if the batch is the step's last."""

    def gradient_sync(is_last: bool) -> AbstractContextManager[None]:
        cast(FSDPModule, gpt).set_requires_gradient_sync(is_last)
        return nullcontext()

    return gradient_sync


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


def expert_parallel(gpt: GPT, config: TrainConfig, world: World, layout: Layout) -> ParallelModel:
    """Experts distributed on ep and sharded on dp; the rest sharded on ep, replicated on dp."""
    mesh = layout.device_mesh(world.device, ("dp", "ep"))
    for mixture in (module for module in gpt.modules() if isinstance(module, Mixture)):
        mixture.experts = DistributedExperts(mixture.experts, mesh["ep"])
        sharded = fully_shard(mixture.experts, mesh=mesh["dp"], shard_placement_fn=_shard_input_dim)
        # An expert computes the bytes of all ep ranks, so its gradient is a sum over ep already.
        sharded.set_gradient_divide_factor(layout.data_ranks)
        # gloo cannot divide in a reduction; where nothing is reduced torch 2.13 would divide twice.
        sharded.set_force_sum_reduction_for_comms(enable=layout.dp > 1)
    compile_blocks(gpt, config)
    shard_parameters(gpt, config, mesh["dp", "ep"] if layout.dp > 1 else mesh["ep"])
    return ParallelModel(gpt, config, gradient_sync=gradient_sync_of(gpt))


def _shard_input_dim(_: nn.Parameter) -> Shard:
    return Shard(1)


class DistributedExperts(Experts):
    """Experts divided equally among the ranks of a mesh, in the order of the ranks."""

    def __init__(self, experts: Experts, mesh: DeviceMesh) -> None:
        nn.Module.__init__(self)
        self._group, self._ranks = mesh.get_group(), mesh.size()
        self.up, self.down = (
            # No broadcast from rank 0: the seed has made the weights equal on all ranks.
            nn.Parameter(distribute_tensor(stacked.data, mesh, [Shard(0)], src_data_rank=None))
            for stacked in (experts.up, experts.down)
        )

    def forward(self, x: Tensor, num_by_expert: Tensor) -> Tensor:
        """Applies the experts to bytes of all ranks.

        Args:
            x: [bytes, width] of this rank, in the order of their experts.
            num_by_expert: [experts], bytes of this rank for each expert.

        Returns:
            [bytes, width] in the same order.
        """
        sent = num_by_expert.view(self._ranks, -1)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self._group)
        # Sync point: the sizes of the all-to-all are needed on the host, so this waits for the GPU.
        num_sent, num_received = sent.sum(dim=1).tolist(), received.sum(dim=1).tolist()

        arrived = self._exchange(x, num_sent, num_received)
        experts = torch.arange(sent.shape[1], device=x.device).repeat(self._ranks)
        # Received bytes are in the order of their senders; experts need them contiguous.
        by_expert = experts.repeat_interleave(received.flatten()).argsort(stable=True)
        up, down = (cast(DTensor, stacked).to_local() for stacked in (self.up, self.down))
        outputs = apply_experts(up, down, arrived[by_expert], received.sum(dim=0))
        return self._exchange(outputs[by_expert.argsort()], num_received, num_sent)

    def _exchange(self, x: Tensor, sent: list[int], received: list[int]) -> Tensor:
        arrived: Tensor = all_to_all_single_autograd(x, received, sent, self._group)
        return arrived
