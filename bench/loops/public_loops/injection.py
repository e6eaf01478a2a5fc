"""Faults that enter a script from outside: calls of it that sleep, compute, raise or are killed."""

import ctypes
import functools
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.sharedctypes import RawArray
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from public_loops.plan import FROM_SHARE, SETTLING_STEPS, SLOWER_BY, Loop


class Track(ctypes.Structure):
    """What a rank does, for its loader's workers and the bench to read.

    Attributes:
        begin: monotonic clock of the first forward that counts; ``latest`` that of the newest.
        usual: seconds of a step before the fault.
        struck: wall clock of the fault's first stroke; 0 before.
    """

    _fields_ = (
        ("pid", ctypes.c_long),
        ("forwards", ctypes.c_long),
        ("fetches", ctypes.c_long),
        ("begin", ctypes.c_double),
        ("latest", ctypes.c_double),
        ("usual", ctypes.c_double),
        ("struck", ctypes.c_double),
    )


def make_tracks(loop: Loop) -> Any:
    """Tracks of all ranks, in memory that forked processes share."""
    return RawArray(Track, loop.ranks)


class Injection:
    """A fault of one rank of a loop."""

    def __init__(self, loop: Loop, fault: str, tracks: Any) -> None:
        self._loop, self._fault, self._tracks = loop, fault, tracks
        self._from_step = int(FROM_SHARE * loop.steps)

    def install(self, module: ModuleType) -> None:
        """Puts the fault into a script that is not yet running."""
        on_forward: Callable[[Any], None] = self._on_forward
        if self._loop.is_compiled:
            disable: Any = torch.compiler.disable
            on_forward = disable(on_forward)
        _call_before(module, self._loop.forward, on_forward)
        if self._fault == "slow fetch":
            _call_before(module, self._loop.fetch, self._on_fetch)

    def _track(self) -> Any:
        """The track of this rank; None before it knows which it is."""
        if not torch.is_grad_enabled():  # an evaluation
            return None
        rank = dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "-1"))
        return self._tracks[rank] if rank >= 0 else None

    def _is_slow(self, track: Any) -> bool:
        slow = self._tracks[self._loop.slow_rank]
        return ctypes.addressof(track) == ctypes.addressof(slow)

    def _on_forward(self, model: Any) -> None:
        track = self._track()
        if track is None or not model.training:
            return
        per_step, settling = self._loop.forwards, SETTLING_STEPS * self._loop.forwards
        track.pid, track.latest = os.getpid(), time.monotonic()
        track.forwards += 1
        if track.forwards <= settling:
            track.begin = track.latest
            return
        if track.forwards <= self._from_step * per_step:
            calls = track.forwards - settling
            track.usual = (track.latest - track.begin) / calls * per_step
        elif self._is_slow(track):
            self._strike_forward(track)

    def _strike_forward(self, track: Any) -> None:
        if self._fault == "slow forward":
            _note(track)
            _compute(SLOWER_BY * track.usual / self._loop.forwards)
        elif self._fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self._fault == "raised":
            raise RuntimeError("a user's own mistake")

    def _on_fetch(self, _: Any) -> None:
        track = self._track()
        if track is None:
            return
        track.fetches += 1
        if track.fetches > self._from_step * self._loop.fetches and self._is_slow(track):
            _note(track)
            workers = self._loop.workers
            # Workers fetch while the loop trains, each a batch of its own.
            share = workers * (1 + SLOWER_BY) if workers else SLOWER_BY
            time.sleep(share * track.usual / self._loop.fetches)


def _note(track: Any) -> None:
    if not track.struck:
        track.struck = time.time()


def _compute(seconds: float) -> None:
    """Uses so much time of a processor."""
    begin = time.thread_time()
    while time.thread_time() - begin < seconds:
        pass


def _call_before(module: ModuleType, point: str, before: Callable[[Any], None]) -> None:
    """Calls a function before another one of a script, with its first argument.

    Args:
        module: the script.
        point: ``Class.method`` or ``function``; a dataset's ``__getitem__`` is called for batches.
        before: called with the object, or with None.
    """
    owner_name, _, attribute = point.rpartition(".")
    owner: Any = getattr(module, owner_name) if owner_name else module
    original = getattr(owner, attribute)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        before(args[0] if owner_name else None)
        return original(*args, **kwargs)

    def get_items(dataset: Any, indices: list[int]) -> list[Any]:
        if type(dataset) is owner:  # not the held-out one that derives from it
            before(dataset)
        return [dataset[index] for index in indices]

    if attribute == "__getitem__":
        owner.__getitems__ = get_items
    else:
        setattr(owner, attribute, call)
