"""Number of samples and tokens in a batch of any kind, and how many a loader fetches ahead."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from lockstep.recorder.interface import StepRecorder
from lockstep.recorder.phases import DATA, OTHER

_PARTS = 16  # of a batch that are looked at: a list of a million words holds up no step


class TimedLoader:
    """A loader or an iterator whose ``next`` is timed; everything else is its own."""

    def __init__(self, monitor: Any, loader: Iterable[Any]) -> None:
        self._monitor, self._loader = monitor, loader

    def __iter__(self) -> Iterator[Any]:
        monitor, batches = self._monitor, iter(self._loader)
        while True:
            monitor.enter_code(DATA)
            try:
                batch = next(batches)
                monitor.count_batch(batch)
            except StopIteration:
                return
            finally:
                monitor.enter_code(OTHER)
            yield batch

    def __next__(self) -> Any:
        return next(iter(self))  # an iterator knows its place

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # a loader without a length says so itself

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _FetchedAhead:
    """The newest loader's workers, and the batches that they have in the making and ready."""

    workers = batches = 0


fetched_ahead = _FetchedAhead()


def count_batch(counts: StepRecorder, batch: Any) -> None:
    """Adds a batch to the step that runs now; ``step`` may say otherwise."""
    counts.batch_samples += num_samples(batch)
    if type(batch) is not tuple and type(batch) is not list:  # the usual batch has no names
        counts.batch_tokens += num_tokens(batch)


def num_samples(batch: Any, depth: int = 3) -> int:
    """Length of the first dimension of the batch's first array; 0 without one near its begin."""
    if (shape := getattr(batch, "shape", None)) is not None:
        return int(shape[0]) if len(shape) else 0
    kind = type(batch)
    if kind is dict or (kind is not tuple and kind is not list and isinstance(batch, Mapping)):
        batch = batch.values()
    elif kind is not tuple and kind is not list and not isinstance(batch, Sequence):
        return 0
    for part in () if isinstance(batch, str | bytes) or not depth else islice(batch, _PARTS):
        if count := num_samples(part, depth - 1):
            return count
    return 0


def num_tokens(batch: Any) -> int:
    """Elements of ``input_ids`` without padding; 0 for a batch without them."""
    if type(batch) is not dict and not isinstance(batch, Mapping):
        return 0
    ids: Any = batch.get("input_ids")
    mask: Any = batch.get("attention_mask")
    if not hasattr(ids, "numel"):
        return 0
    # What is on a device is not waited for; another shape is not that of padding.
    if mask is not None and getattr(mask, "is_cpu", False) and mask.shape == ids.shape:
        return int(mask.count_nonzero())
    return int(ids.numel())
