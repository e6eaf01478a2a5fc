"""Times the wait for each batch of torch's DataLoader, and counts what is fetched, also ahead.

Frameworks iterate the loader inside one of their own, out of reach of ``monitor.prepare``.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from lockstep.patches import evaluations, waits
from lockstep.recorder.batches import count_batch, fetched_ahead
from lockstep.recorder.phases import DATA, EVAL, OTHER


def wrap_next(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Counts the wait as data, but where the loop already does and in threads of others."""

    @functools.wraps(original)
    def call(self: Any) -> Any:
        recorder = waits.recorder_of_this_thread()
        if recorder is None or recorder.phase == DATA:
            return original(self)
        # An evaluation fetches its own batches.
        if recorder.phase == EVAL and not evaluations.is_over():
            return original(self)
        recorder.enter_code(DATA)
        try:
            batch = original(self)
            if recorder.counts_batches and recorder.phase == DATA:  # no block holds another one
                waits.run("loop_numbers", count_batch, recorder, batch)
            return batch
        finally:
            recorder.enter_code(OTHER)

    return call


def wrap_workers(original: Callable[..., None]) -> Callable[..., None]:
    """Notes how far ahead of the loop a loader's workers are at most."""

    @functools.wraps(original)
    def call(self: Any, loader: Any) -> None:
        original(self, loader)
        # An evaluation has a loader of its own.
        if torch.is_grad_enabled() and waits.recorder_of_this_thread() is not None:
            fetched_ahead.workers = loader.num_workers
            fetched_ahead.batches = loader.num_workers * loader.prefetch_factor

    return call
