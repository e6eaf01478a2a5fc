"""Pipeline: the blocks are cut into stages on different ranks, and micro-batches flow through."""

import copy
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.mesh import Layout
from lockstep_trainer.model import GPT, next_byte_loss
from lockstep_trainer.parallel.clip import clip_gradients
from lockstep_trainer.parallel.shared import SharedModel, compile_blocks, compute_in
from lockstep_trainer.world import World


def pipelined(gpt: GPT, config: TrainConfig, world: World, layout: Layout) -> SharedModel:
    """The model cut into stages along the pp axis; the first reads, the last tells the loss."""
    mesh = layout.device_mesh(world.device, ("pp",))["pp"]
    stages = cut(gpt, config, mesh)
    for stage in stages.values():
        compile_blocks(stage, config)
    return PipelinedModel(stages, config, mesh, world.device)


def cut(gpt: GPT, config: TrainConfig, mesh: DeviceMesh) -> dict[int, GPT]:
    """This rank's stages by number; of N x ranks stages rank r has r, r + ranks and so on."""
    ranks = mesh.size()
    num_stages = ranks * config.stages_per_rank
    mine = range(mesh.get_local_rank(), num_stages, ranks)
    return {number: _stage(gpt, number, num_stages) for number in mine}


def _stage(gpt: GPT, number: int, num_stages: int) -> GPT:
    """A copy of the model without what stands in other stages."""
    stage, layers = copy.deepcopy(gpt), len(gpt.blocks)
    own = range(number * layers // num_stages, (number + 1) * layers // num_stages)
    for name in set(stage.blocks) - {str(block) for block in own}:
        del stage.blocks[name]
    if number > 0:
        stage.bytes = stage.places = None
    if number < num_stages - 1:
        stage.norm = stage.head = None
    return stage


class PipelinedModel:
    """This rank's stages under a schedule; accumulated batches are only more micro-batches.

    Args:
        stages: by number, as ``cut`` gives them.
        mesh: the pp axis.
    """

    def __init__(
        self, stages: dict[int, GPT], config: TrainConfig, mesh: DeviceMesh, device: torch.device
    ) -> None:
        self.parts = tuple(stages.values())
        self.module, self.watched = _joined(self.parts), self.parts[0]
        self.stages, self._bfloat16 = mesh.get_group(), config.dtype == "bfloat16"
        self._reads, self._knows_loss = 0 in stages, self.parts[-1].head is not None
        total = mesh.size() * config.stages_per_rank
        built = [PipelineStage(p, n, total, device, group=self.stages) for n, p in stages.items()]
        self.schedule = _scheduled(built, config)

    def forward_backward(self, x: Tensor, y: Tensor) -> Tensor:
        """See ``SharedModel``; the last stage tells the others the loss."""
        return self._run(self.schedule.step, x, y)

    @torch.no_grad()
    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """See ``SharedModel``."""
        return self._run(self.schedule.eval, x, y)

    def _run(self, run: Callable[..., object], x: Tensor, y: Tensor) -> Tensor:
        losses: list[Tensor] = []
        with compute_in(x.device, bfloat16=self._bfloat16):
            last = {"target": y, "losses": losses} if self._knows_loss else {}
            run(*([x] if self._reads else []), **last)
        known = torch.stack(losses).mean().detach() if losses else torch.zeros((), device=x.device)
        dist.broadcast(known, group_src=dist.get_world_size(self.stages) - 1, group=self.stages)
        return known

    def clip(self, max_norm: float) -> Tensor:
        """See ``SharedModel``; the norm is over all stages."""
        return clip_gradients(self.module.parameters(), max_norm, stages=self.stages)


def _scheduled(
    stages: Sequence[PipelineStage], config: TrainConfig
) -> ScheduleGPipe | Schedule1F1B | ScheduleInterleaved1F1B:
    """The order of the work; each divides gradients by the number of micro-batches."""
    number = config.micro_batches * config.accumulate
    if config.schedule == "interleaved":
        return ScheduleInterleaved1F1B([*stages], number, loss_fn=next_byte_loss)
    single = ScheduleGPipe if config.schedule == "gpipe" else Schedule1F1B
    return single(stages[0], number, loss_fn=next_byte_loss)


def _joined(parts: Sequence[GPT]) -> nn.Module:
    """All that the parts hold as one module, under the names of the whole model."""
    if len(parts) == 1:
        return parts[0]
    whole = nn.Module()
    whole.blocks = nn.ModuleDict({n: block for part in parts for n, block in part.blocks.items()})
    for part in parts:
        for name, end in part.named_children():
            if name != "blocks":
                whole.add_module(name, end)
    return whole
