"""Data parallel: each rank holds a replica of the model; the backward averages gradients."""

from contextlib import nullcontext

from torch.nn.parallel import DistributedDataParallel

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.layout.world import Layout, World
from lockstep_trainer.model.gpt import GPT
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
