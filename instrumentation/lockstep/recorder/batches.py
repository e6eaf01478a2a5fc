"""Number of samples and tokens in a batch of any kind, and how many a loader fetches ahead."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class _FetchedAhead:
    """The newest loader's workers, and the batches that they have in the making and ready."""

    workers = batches = 0


fetched_ahead = _FetchedAhead()


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
    kind = type(batch)  # the usual batch has no names, and a dict is known without asking further
    if kind is dict or (kind is not tuple and kind is not list and isinstance(batch, Mapping)):
        counts.batch_tokens += num_tokens(batch)


def num_samples(batch: Any) -> int:
    """Length of the first dimension of the batch's first array; 0 without one."""
    if (shape := getattr(batch, "shape", None)) is not None:
        return int(shape[0]) if len(shape) else 0
    kind = type(batch)
    if kind is dict or (kind is not tuple and kind is not list and isinstance(batch, Mapping)):
        batch = batch.values()
    elif kind is not tuple and kind is not list and not isinstance(batch, Sequence):
        return 0
    for part in () if isinstance(batch, str | bytes) else batch:
        if count := num_samples(part):
            return count
    return 0


def num_tokens(batch: Mapping[Any, Any]) -> int:
    """Elements of ``input_ids`` without padding; 0 for a batch without them."""
    ids: Any = batch.get("input_ids")
    mask: Any = batch.get("attention_mask")
    if not hasattr(ids, "numel"):
        return 0
    # What is on a device is not waited for; a mask of two dimensions more is no padding's.
    if mask is not None and getattr(mask, "is_cpu", False) and mask.shape == ids.shape:
        return int(mask.count_nonzero())
    return int(ids.numel())
