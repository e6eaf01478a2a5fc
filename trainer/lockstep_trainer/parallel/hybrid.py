"""Hybrid: pipeline, tensor and sharded data parallel on one device mesh, each part unchanged."""

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.layout.world import Layout, World
from lockstep_trainer.model.gpt import GPT
from lockstep_trainer.parallel.fsdp2 import DATA_AXES, data_mesh, gradient_sync_of, shard_parameters
from lockstep_trainer.parallel.parallel_model import ParallelModel, compile_blocks
from lockstep_trainer.parallel.pipeline import PipelinedModel, split_into_stages
from lockstep_trainer.parallel.tensor import shard_layers


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
