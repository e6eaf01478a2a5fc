"""Graceful preemption: after SIGTERM all ranks save, leave after the same step, and exit with 75.

A scheduler that preempts a job sends SIGTERM, perhaps to one rank alone, and kills after a grace
period. All ranks have to stop after the same step, or the others wait for the ranks that left.
They agree through the store of their rendezvous. A rank that got the signal writes the number of
the step that it has just ended, unless another rank did. Every rank checks after each ``every``-th
step, and stops if the store holds the number of an earlier step. All ranks decide alike: the number
never changes, and a later step needs all ranks (its gradients are summed over them), so that each
rank ends it after the number was written. A check costs one round trip to the store, and neither a
collective nor a wait for the GPU.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lockstep_trainer.layout.world import World

_KEY = "lockstep/stop"
_GRACE_EXCEEDED = 1


class Preemption:
    """The agreement of the ranks to stop after one step, the ``last`` of the run at the latest.

    Each stops after its own, unless a step needs all ranks (``same_step``).
    """

    def __init__(self, world: World, *, every: int, last: int, same_step: bool = True) -> None:
        assert world.store is not None
        self._store, self._every, self._last = world.store, every, last
        self._same_step = same_step
        self._requested = threading.Event()
        self._has_written = False

    @property
    def is_requested(self) -> bool:
        """Whether this rank knows of a request, by a signal or from the others."""
        return self._requested.is_set()

    def request_stop(self) -> None:
        """Asks this rank to stop; the others learn it through the store."""
        self._requested.set()

    def should_stop(self, step: int) -> bool:
        """Whether all ranks stop after this step; every rank has to call it after each step."""
        is_check = step % self._every == 0 and step != self._last
        # Below, not equal: a rank may check this step before another one writes its number.
        agreed = is_check and self._store.check([_KEY])
        agreed = agreed and (not self._same_step or int(self._store.get(_KEY)) < step)
        if agreed:
            self._requested.set()
        elif self.is_requested and not self._has_written:
            # compare_set writes only if the key is not set: the first number stays.
            self._store.compare_set(_KEY, "", str(step))
            self._has_written = True
        return agreed


@contextmanager
def handle_sigterm(preemption: Preemption, grace_seconds: float) -> Iterator[None]:
    """Turns SIGTERM into a request to stop, also while the loop waits in a collective.

    A rank that is still in the context ``grace_seconds`` after the signal is ended with exit
    status 1. A Python handler alone would be too late: it runs when the main thread returns from C,
    and a collective that waits for a lost peer does not return. So a thread reads the wake-up pipe.
    """
    read_end, write_end = os.pipe()
    # signal.set_wakeup_fd requires a non-blocking descriptor.
    os.set_blocking(write_end, False)
    done = threading.Event()
    listener = threading.Thread(
        # A daemon, so that a loop that raises is not kept alive by the listener.
        target=_listen,
        args=(read_end, preemption, grace_seconds, done),
        daemon=True,
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
        signal.signal(signal.SIGTERM, signal.SIG_IGN if preemption.is_requested else before)


def _listen(
    read_end: int, preemption: Preemption, grace_seconds: float, done: threading.Event
) -> None:
    while number := os.read(read_end, 1):
        if number[0] == signal.SIGTERM:
            preemption.request_stop()
            if not done.wait(grace_seconds):
                sys.stderr.write(f"lockstep: not done {grace_seconds:g} s after SIGTERM: ended\n")
                # os._exit flushes nothing, and sys.exit would only end this thread.
                sys.stderr.flush()
                os._exit(_GRACE_EXCEEDED)
            return
