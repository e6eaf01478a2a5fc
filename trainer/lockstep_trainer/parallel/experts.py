"""Expert parallel: each rank holds some of the experts; bytes go to their expert's rank and back.

All other parameters are sharded by FSDP2 over the same ranks, which see different data.
"""

from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.layout.world import Layout, World
from lockstep_trainer.model.gpt import GPT, Experts, Mixture, apply_experts
from lockstep_trainer.parallel.fsdp2 import gradient_sync_of, shard_parameters
from lockstep_trainer.parallel.parallel_model import ParallelModel, compile_blocks


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
        """Applies the experts to [bytes, width] in the order of experts, as many as each has."""
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
