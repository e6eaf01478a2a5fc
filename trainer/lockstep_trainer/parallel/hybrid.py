"""Hybrids: pipeline, tensor and sharded data parallel on one device mesh, each piece as it is."""

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.mesh import Layout
from lockstep_trainer.model import GPT
from lockstep_trainer.parallel.fsdp2 import DATA_AXES, data_mesh, shard_parameters, synced_by
from lockstep_trainer.parallel.pipeline import PipelinedModel, cut
from lockstep_trainer.parallel.shared import SharedModel, WholeModel, compile_blocks
from lockstep_trainer.parallel.tensor import shard_layers
from lockstep_trainer.world import World


def hybrid(gpt: GPT, config: TrainConfig, world: World, layout: Layout) -> SharedModel:
    """Stages along pp, the layers of each cut along tp, what is left sharded along dp x fsdp."""
    mesh = layout.device_mesh(world.device, ("pp", "tp", *DATA_AXES))
    stages = cut(gpt, config, mesh["pp"]) if layout.pp > 1 else {0: gpt}
    for stage in stages.values():
        if layout.tp > 1:
            shard_layers(stage, mesh["tp"])
        compile_blocks(stage, config)
        shard_parameters(stage, config, data_mesh(mesh, layout))
    if layout.pp > 1:
        return PipelinedModel(stages, config, mesh["pp"], world.device)
    return WholeModel(gpt, config, synced=synced_by(gpt))
