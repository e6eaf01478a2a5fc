"""The optimizer and its learning-rate schedule."""

import math
from collections.abc import Iterable

import torch
from torch.nn import Parameter

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.parallel.clip import group_by_mesh

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
