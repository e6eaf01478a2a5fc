"""Pipeline parallel: the blocks form stages on different ranks; micro-batches flow through them."""

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
from torch.distributed.pipelining.schedules import _PipelineSchedule

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.layout.world import Layout, World
from lockstep_trainer.model.gpt import GPT, next_byte_loss
from lockstep_trainer.parallel.parallel_model import ParallelModel, compile_blocks, compute_in


def pipelined(gpt: GPT, config: TrainConfig, world: World, layout: Layout) -> ParallelModel:
    """The model in stages along the pp axis; the first stage reads, the last computes the loss."""
    mesh = layout.device_mesh(world.device, ("pp",))["pp"]
    stages = split_into_stages(gpt, config, mesh)
    for stage in stages.values():
        compile_blocks(stage, config)
    return PipelinedModel(stages, config, mesh, world.device)


def split_into_stages(gpt: GPT, config: TrainConfig, mesh: DeviceMesh) -> dict[int, GPT]:
    """This rank's stages by number: rank r of R has stages r, r + R, r + 2 R and so on."""
    ranks = mesh.size()
    num_stages = ranks * config.stages_per_rank
    # Looped placement, as the interleaved schedule requires.
    own_numbers = range(mesh.get_local_rank(), num_stages, ranks)
    return {number: _stage(gpt, number, num_stages) for number in own_numbers}


def _stage(gpt: GPT, number: int, num_stages: int) -> GPT:
    # The whole model is built first, so that initial weights do not depend on the layout.
    stage, layers = copy.deepcopy(gpt), len(gpt.blocks)
    own = range(number * layers // num_stages, (number + 1) * layers // num_stages)
    for name in set(stage.blocks) - {str(block) for block in own}:
        del stage.blocks[name]
    if number > 0:
        stage.bytes = stage.places = None
    if number < num_stages - 1:
        stage.norm = stage.head = None
    return stage


class PipelinedModel(ParallelModel):
    """This rank's stages by number under a schedule; accumulated batches are more micro-batches."""

    def __init__(
        self, stages: dict[int, GPT], config: TrainConfig, mesh: DeviceMesh, device: torch.device
    ) -> None:
        self.parts = tuple(stages.values())
        self.module, self.forward_module = _merge_parts(self.parts), self.parts[0]
        self.stages, self._bfloat16 = mesh.get_group(), config.dtype == "bfloat16"
        self._is_first, self._is_last = 0 in stages, self.parts[-1].head is not None
        total = mesh.size() * config.stages_per_rank
        built = [PipelineStage(p, n, total, device, group=self.stages) for n, p in stages.items()]
        self.schedule: _PipelineSchedule = _build_schedule(built, config)

    def forward_backward(self, x: Tensor, y: Tensor) -> Tensor:
        """See ``ParallelModel``; the last stage broadcasts the loss."""
        return self._run(self.schedule.step, x, y)

    @torch.no_grad()
    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """See ``ParallelModel``."""
        return self._run(self.schedule.eval, x, y)

    def _run(self, run: Callable[..., object], x: Tensor, y: Tensor) -> Tensor:
        losses: list[Tensor] = []
        with compute_in(x.device, bfloat16=self._bfloat16):
            targets = {"target": y, "losses": losses} if self._is_last else {}
            run(*([x] if self._is_first else []), **targets)
        loss = torch.stack(losses).mean().detach() if losses else torch.zeros((), device=x.device)
        # All ranks need the loss: the monitor and the progress line of rank 0 report it.
        dist.broadcast(loss, group_src=dist.get_world_size(self.stages) - 1, group=self.stages)
        return loss


def _build_schedule(stages: Sequence[PipelineStage], config: TrainConfig) -> _PipelineSchedule:
    """The schedule, which divides gradients by the number of micro-batches."""
    num_micro_batches = config.micro_batches * config.accumulate
    if config.schedule == "interleaved":
        return ScheduleInterleaved1F1B([*stages], num_micro_batches, loss_fn=next_byte_loss)
    single = ScheduleGPipe if config.schedule == "gpipe" else Schedule1F1B
    return single(stages[0], num_micro_batches, loss_fn=next_byte_loss)


def _merge_parts(parts: Sequence[GPT]) -> nn.Module:
    """One module with all parameters of the parts, under their names in the whole model."""
    # Checkpoints go by these names, so that a run with any other layout can read them.
    if len(parts) == 1:
        return parts[0]
    merged = nn.Module()
    merged.blocks = nn.ModuleDict({n: block for part in parts for n, block in part.blocks.items()})
    for part in parts:
        for name, end in part.named_children():
            if name != "blocks":
                merged.add_module(name, end)
    return merged
