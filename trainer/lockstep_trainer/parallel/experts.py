"""Expert parallel: each rank holds some of the experts, and bytes travel to theirs and back.

Everything else is sharded by FSDP2 over the same ranks, which see different data.
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
from lockstep_trainer.mesh import Layout
from lockstep_trainer.mixture import Experts, Mixture, apply_experts
from lockstep_trainer.model import GPT
from lockstep_trainer.parallel.fsdp2 import shard_parameters, synced_by
from lockstep_trainer.parallel.shared import SharedModel, WholeModel, compile_blocks
from lockstep_trainer.world import World


def expert_parallel(gpt: GPT, config: TrainConfig, world: World, layout: Layout) -> SharedModel:
    """The experts spread along ep and sharded along dp, the rest sharded along ep, copied on dp."""
    mesh = layout.device_mesh(world.device, ("dp", "ep"))
    for mixture in (module for module in gpt.modules() if isinstance(module, Mixture)):
        mixture.experts = SpreadExperts(mixture.experts, mesh["ep"])
        spread = fully_shard(mixture.experts, mesh=mesh["dp"], shard_placement_fn=_by_input)
        # They met the bytes of all ep ranks, so their gradients are sums over ep already.
        spread.set_gradient_divide_factor(layout.data_ranks)
        # gloo cannot divide in a reduction; where nothing is reduced torch 2.13 would divide twice.
        spread.set_force_sum_reduction_for_comms(enable=layout.dp > 1)
    compile_blocks(gpt, config)
    shard_parameters(gpt, config, mesh["dp", "ep"] if layout.dp > 1 else mesh["ep"])
    return WholeModel(gpt, config, synced=synced_by(gpt))


def _by_input(_: nn.Parameter) -> Shard:
    return Shard(1)


class SpreadExperts(Experts):
    """Experts of which each rank of a mesh holds as many, in the order of the ranks."""

    def __init__(self, whole: Experts, mesh: DeviceMesh) -> None:
        nn.Module.__init__(self)
        self._group, self._ranks = mesh.get_group(), mesh.size()
        self.up, self.down = (
            nn.Parameter(distribute_tensor(stacked.data, mesh, [Shard(0)], src_data_rank=None))
            for stacked in (whole.up, whole.down)
        )

    def forward(self, x: Tensor, num_by_expert: Tensor) -> Tensor:
        """(bytes, width) in the order of all experts to the same shape and order."""
        sent = num_by_expert.view(self._ranks, -1)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self._group)
        to, come = sent.sum(dim=1).tolist(), received.sum(dim=1).tolist()  # waits for a GPU

        arrived = self._exchange(x, to, come)
        experts = torch.arange(sent.shape[1], device=x.device).repeat(self._ranks)
        by_expert = experts.repeat_interleave(received.flatten()).argsort(stable=True)
        up, down = (cast(DTensor, stacked).to_local() for stacked in (self.up, self.down))
        done = apply_experts(up, down, arrived[by_expert], received.sum(dim=0))
        return self._exchange(done[by_expert.argsort()], come, to)

    def _exchange(self, x: Tensor, sent: list[int], received: list[int]) -> Tensor:
        arrived: Tensor = all_to_all_single_autograd(x, received, sent, self._group)
        return arrived
