"""The optimizer, its learning rate, and clipping by the norm over the whole model."""

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import Parameter
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from lockstep_trainer.config import TrainConfig

_LAST_LEARNING_RATE_RATIO = 0.1


def learning_rate_at(step: int, config: TrainConfig) -> float:
    """Linear warm-up to the peak, then a cosine down to a tenth of it; steps count from 1."""
    if step <= config.warmup:
        return config.learning_rate * step / config.warmup
    progress = (step - config.warmup) / max(1, config.steps - config.warmup)
    low = _LAST_LEARNING_RATE_RATIO
    return config.learning_rate * (low + (1 - low) * (1 + math.cos(math.pi * progress)) / 2)


def adamw(parameters: Iterable[Parameter]) -> torch.optim.Optimizer:
    """Fused AdamW, with one parameter group for each set of parameters on the same ranks."""
    groups = [{"params": group} for group in group_by_mesh(parameters)]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


def clip_gradients(
    parameters: Iterable[Parameter], max_norm: float, stages: dist.ProcessGroup | None = None
) -> Tensor:
    """Scales gradients to a norm of ``max_norm`` at most, if not 0; gives the norm before it.

    That is on every rank the norm of one process, up to the order of the sums: that of a sharded
    parameter is summed over its mesh, and all over ``stages``, ranks of the pipeline.
    """
    groups = group_by_mesh(parameters)
    norms = [_norm([p.grad for p in group if p.grad is not None]) for group in groups]
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    if stages is not None:
        squared = total.square()
        dist.all_reduce(squared, group=stages)
        total = squared.sqrt()
    for group in groups:
        clip_grads_with_norm_(group, max_norm or math.inf, total)
    return total


def group_by_mesh(parameters: Iterable[Parameter]) -> list[list[Parameter]]:
    """The parameters in groups that lie on the same ranks."""
    # torch's foreach kernels refuse DTensors of different meshes, and DTensors mixed with tensors.
    groups: dict[object, list[Parameter]] = {}
    for parameter in parameters:
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        groups.setdefault(mesh, []).append(parameter)
    return list(groups.values())


def _norm(gradients: list[Tensor]) -> Tensor:
    norm: Tensor = get_total_norm(gradients)
    # A DTensor's norm is a partial sum on each rank until full_tensor reduces it over its mesh.
    total: Tensor = norm.full_tensor() if isinstance(norm, DTensor) else norm
    return total
