"""Tensor parallel: each layer is sharded among the ranks, and between layers the sequence is.

Projections into heads and hidden units are sharded by column, those out of them by row. Norms and
the residual stream are sharded along the sequence, so that each activation is held once.
"""

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.layout.world import Layout, World
from lockstep_trainer.model.gpt import GPT
from lockstep_trainer.parallel.parallel_model import ParallelModel, compile_blocks


def tensor_parallel(gpt: GPT, config: TrainConfig, world: World, layout: Layout) -> ParallelModel:
    """The model sharded along the tp axis; all its ranks see the same samples."""
    shard_layers(gpt, layout.device_mesh(world.device, ("tp",))["tp"])
    compile_blocks(gpt, config)
    return ParallelModel(gpt, config)


def shard_layers(gpt: GPT, mesh: DeviceMesh) -> None:
    """Shards every layer of a model, or of one pipeline stage, in place."""
    ends = {name: style for name, style in _end_styles().items() if getattr(gpt, name) is not None}
    parallelize_module(gpt, mesh, ends)
    for block in gpt.blocks.values():
        parallelize_module(block, mesh, _block_styles())


def _end_styles() -> dict[str, ParallelStyle]:
    replicated, by_sequence = Replicate(), Shard(1)
    return {
        "bytes": RowwiseParallel(input_layouts=replicated, output_layouts=by_sequence),
        # Positions have no batch dimension, so their sequence is dimension 0.
        "places": RowwiseParallel(input_layouts=replicated, output_layouts=Shard(0)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=by_sequence, output_layouts=replicated),
    }


def _block_styles() -> dict[str, ParallelStyle]:
    by_sequence = Shard(1)
    return {
        "norm_1": SequenceParallel(),
        "attention": _gather_sequence(),
        "attention.query_key_value": ColwiseParallel(),
        "attention.out": RowwiseParallel(output_layouts=by_sequence),
        "norm_2": SequenceParallel(),
        "mlp": _gather_sequence(),
        "mlp.0": ColwiseParallel(),
        "mlp.2": RowwiseParallel(output_layouts=by_sequence),
    }


def _gather_sequence() -> ParallelStyle:
    """Gathers an input that is sharded along the sequence."""
    return PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
