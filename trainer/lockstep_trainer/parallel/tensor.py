"""Tensor parallel: every layer is cut among the ranks, and between layers so is the sequence.

Heads and hidden units are cut by column going in and by row going out; the norms and the stream
between are cut along the sequence, so that each activation is held once.
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
from lockstep_trainer.mesh import Layout
from lockstep_trainer.model import GPT
from lockstep_trainer.parallel.shared import SharedModel, WholeModel, compile_blocks
from lockstep_trainer.world import World


def tensor_parallel(gpt: GPT, config: TrainConfig, world: World, layout: Layout) -> SharedModel:
    """The model cut along the tp axis; all ranks see the same samples."""
    shard_layers(gpt, layout.device_mesh(world.device, ("tp",))["tp"])
    compile_blocks(gpt, config)
    return WholeModel(gpt, config)


def shard_layers(gpt: GPT, mesh: DeviceMesh) -> None:
    """Cuts every layer of a model, or of one stage of it, in place."""
    ends = {name: style for name, style in _ends().items() if getattr(gpt, name) is not None}
    parallelize_module(gpt, mesh, ends)
    for block in gpt.blocks.values():
        parallelize_module(block, mesh, _block())


def _ends() -> dict[str, ParallelStyle]:
    whole, by_sequence = Replicate(), Shard(1)
    return {
        "bytes": RowwiseParallel(input_layouts=whole, output_layouts=by_sequence),
        "places": RowwiseParallel(input_layouts=whole, output_layouts=Shard(0)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=by_sequence, output_layouts=whole),
    }


def _block() -> dict[str, ParallelStyle]:
    by_sequence = Shard(1)
    return {
        "norm_1": SequenceParallel(),
        "attention": _gathered(),
        "attention.query_key_value": ColwiseParallel(),
        "attention.out": RowwiseParallel(output_layouts=by_sequence),
        "norm_2": SequenceParallel(),
        "mlp": _gathered(),
        "mlp.0": ColwiseParallel(),
        "mlp.2": RowwiseParallel(output_layouts=by_sequence),
    }


def _gathered() -> ParallelStyle:
    """What is cut along the sequence comes in whole."""
    return PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
