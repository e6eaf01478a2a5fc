"""Number of samples and tokens in a batch of any kind, counted where the loop takes it."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class BatchCounts(Protocol):
    """Where batches are counted.

    Attributes:
        batch_samples, batch_tokens: of the batches that the loop has taken in the step that runs
            now.
    """

    batch_samples: int
    batch_tokens: int


def count_batch(counts: BatchCounts, batch: Any) -> None:
    """Adds a batch to the step that runs now; ``step`` may say otherwise."""
    counts.batch_samples += num_samples(batch)
    if type(batch) is not tuple and type(batch) is not list:  # the usual batch has no names
        counts.batch_tokens += num_tokens(batch)


def num_samples(batch: Any) -> int:
    """Length of the first dimension of the batch's first array; 0 without one."""
    if type(batch) is tuple or type(batch) is list:  # faster than to ask what it is like
        return next((count for part in batch if (count := num_samples(part))), 0)
    if (shape := getattr(batch, "shape", None)) is not None:
        return int(shape[0]) if len(shape) else 0
    if isinstance(batch, Mapping):
        batch = tuple(batch.values())
    if isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        return next((count for part in batch if (count := num_samples(part))), 0)
    return 0


def num_tokens(batch: Any) -> int:
    """Elements of ``input_ids`` without padding; 0 for a batch without them."""
    ids: Any = batch.get("input_ids") if isinstance(batch, Mapping) else None
    if not hasattr(ids, "numel"):
        return 0
    mask: Any = batch.get("attention_mask")
    # What is on a device is not waited for; other arrays have no device type.
    device_type = getattr(getattr(mask, "device", None), "type", None)
    is_mask = device_type == "cpu" and mask.shape == ids.shape
    return int(mask.sum()) if is_mask else int(ids.numel())
