"""Leaves in good order when told to: SIGTERM, a save within the grace, an exit status of its own.

A scheduler that wants its machine back sends SIGTERM, perhaps to one rank alone, and kills after a
while. All ranks have to stop after the same step, or those that go on wait for those that left.
They agree through the store by which they met. A rank that was told writes the number of the step
it has just ended there, if no other did; every rank looks after each ``every``-th step, and stops
if it finds the number of an earlier one. All find the same: the number never changes, and a later
step needs all ranks (its gradients are summed over them), so whoever ends one does so after the
number was written. A look costs one round trip to the store, and neither a collective nor a wait
for the GPU.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lockstep_trainer.world import World

_KEY = "lockstep/stop"
_LATE = 1


class Preemption:
    """Whether the ranks were told to stop. Made by ``watched``.

    Args:
        world: of ranks that have joined.
        every: steps between two looks.
        last: step after which the run is over anyway.
    """

    def __init__(self, world: World, *, every: int, last: int) -> None:
        assert world.store is not None
        self._store, self._every, self._last = world.store, every, last
        self._told = threading.Event()
        self._wrote = False

    @property
    def told(self) -> bool:
        """Whether this rank knows, by a signal or from the others."""
        return self._told.is_set()

    def tell(self) -> None:
        """Tells this rank to stop; the others will learn it."""
        self._told.set()

    def agreed(self, step: int) -> bool:
        """Whether all ranks stop after this step; to be asked after each, on every rank."""
        look = step % self._every == 0 and step != self._last
        agreed = look and self._store.check([_KEY]) and int(self._store.get(_KEY)) < step
        if agreed:
            self._told.set()
        elif self.told and not self._wrote:
            self._store.compare_set(_KEY, "", str(step))
            self._wrote = True
        return agreed


@contextmanager
def watched(preemption: Preemption, grace_seconds: float) -> Iterator[None]:
    """Listens to SIGTERM, also while the loop waits in a collective, until the block is left.

    ``grace_seconds`` after the signal a rank that has not stopped is ended with exit status 1. A
    Python handler alone would come too late: it runs when the main thread is back from C.
    """
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    done = threading.Event()
    listener = threading.Thread(
        target=_listen, args=(read_end, preemption, grace_seconds, done), daemon=True
    )
    before_fd = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    listener.start()
    try:
        yield
    finally:
        done.set()
        signal.set_wakeup_fd(before_fd)
        os.close(write_end)
        listener.join()
        os.close(read_end)
        # A launcher sends SIGTERM when the first rank has left. Ignored, it cannot spoil the exit
        # status of the others; a handler would be gone in the last moments of the interpreter.
        signal.signal(signal.SIGTERM, signal.SIG_IGN if preemption.told else before)


def _listen(
    read_end: int, preemption: Preemption, grace_seconds: float, done: threading.Event
) -> None:
    while number := os.read(read_end, 1):
        if number[0] == signal.SIGTERM:
            preemption.tell()
            if not done.wait(grace_seconds):
                sys.stderr.write(f"lockstep: not done {grace_seconds:g} s after SIGTERM: ended\n")
                sys.stderr.flush()
                os._exit(_LATE)
            return
