"""Number of samples and tokens in a batch of any kind."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch


def num_samples(batch: Any) -> int:
    """Length of the first dimension of the batch's first tensor; 0 without a tensor."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else 0
    if isinstance(batch, Mapping):
        batch = tuple(batch.values())
    if isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        return next((count for part in batch if (count := num_samples(part))), 0)
    return 0


def num_tokens(batch: Any) -> int:
    """Elements of ``input_ids``; 0 for a batch without them."""
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    return ids.numel() if isinstance(ids, torch.Tensor) else 0
