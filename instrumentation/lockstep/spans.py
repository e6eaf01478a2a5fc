"""Blocks that a loop puts around what is no ordinary step: evaluation, checkpoints, restores."""

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from lockstep.checkpoints import Restoring, Saving, write_restored
from lockstep.disabled import Disabled
from lockstep.guard import guarded
from lockstep.loading import TimedLoader
from lockstep.phases import INIT, OTHER, code_of
from lockstep.seldom import Seldom
from lockstep.unusual import FLAG
from lockstep_records.layout import FINGERPRINTS, SELDOM
from lockstep_records.page_writer import PageWriter

T = TypeVar("T")
_FINGERPRINTS = SELDOM.word("fingerprints")


class Spans(Disabled):
    """The part of a monitor that is not in a hurry."""

    _page: PageWriter
    _seldom: Seldom
    _now_in: int
    _held: bool
    _flags: int

    @property
    def has_mesh(self) -> bool:
        """Whether the rank's coordinates name more than its data-parallel replica."""
        return any(axis != "dp" for axis, _ in self._page.identity.mesh)

    def _cut(self, code: int) -> int:
        raise NotImplementedError

    def mark(self, phase: str) -> None:
        """Ends the current phase and begins the named one.

        Raises:
            ValueError: no phase has that name.
        """
        self.enter(code_of(phase))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Counts the block as one phase, whatever hooks fire inside, such as in an evaluation.

        Raises:
            ValueError: no phase has that name.
        """
        outer, was_held = self._now_in, self._held
        self._cut(code_of(name))
        self._held = True
        try:
            yield
        except Exception as error:
            self._note(error, name)
            raise
        finally:
            self._held = was_held
            self._cut(outer if was_held or outer == INIT else OTHER)

    @guarded
    def _note(self, error: BaseException, name: str) -> None:
        """The user's own error leaves a block: it is theirs, and passes on."""
        if self._seldom.tell_error(error):
            self._flags |= FLAG["out_of_memory"]
        self._seldom.tell("span_exception", f"{type(error).__name__} left a block of phase {name}")

    def prepare(self, loader: Iterable[T]) -> Iterable[T]:
        """The same batches; the time until each is there counts as waiting for data."""
        return TimedLoader(self, loader)

    @contextmanager
    def checkpoint(self, step: int | None = None) -> Iterator[Saving]:
        """Counts the block as writing a checkpoint; an exception in it makes the attempt failed.

        With ``later()`` on what it gives, the write goes on after the block, until ``end()``.
        """
        saving = Saving(step, self._seldom.end_saving)
        began_ns = time.monotonic_ns()
        good = False
        try:
            with self.phase("checkpoint"):
                yield saving
            good = True
        finally:
            if not (good and saving.goes_on):
                saving.end(failed=not good)
            self._count_blocking(time.monotonic_ns() - began_ns)

    @guarded
    def tell_fork(self) -> None:
        """Counts a fork of this process; the child leaves the page alone."""
        self._seldom.tell(
            "fork", "the process forked: the child writes no page", level=logging.INFO
        )

    @guarded
    def tell_shape(self) -> None:
        """Counts a model whose parameters are not those that were hung on."""
        self._seldom.tell("shape_change", "the model's parameters have changed in number or size")

    @guarded
    def tell_fingerprint(self, step: int, parameters: int, gradients: int) -> None:
        """Keeps the fingerprints of a step, unsigned 64 bit each."""
        slots = self._seldom.slots
        place = slots.words[_FINGERPRINTS] % FINGERPRINTS
        slots.signed[SELDOM.word("fingerprint_step") + place] = step
        slots.words[SELDOM.word("fingerprint_parameters") + place] = parameters
        slots.words[SELDOM.word("fingerprint_gradients") + place] = gradients
        slots.words[_FINGERPRINTS] += 1
        self._seldom.commit(time.monotonic_ns())

    @guarded
    def tell_nonfinite(self, number: int) -> None:
        """Counts values among sampled parameters and gradients that are NaN or infinite."""
        self._seldom.slots.count("nonfinite", "parameters", number)

    @guarded
    def _count_blocking(self, nanoseconds: int) -> None:
        self._seldom.slots.add("checkpoint_blocking_seconds", nanoseconds * 1e-9)
        self._seldom.commit(time.monotonic_ns())

    @contextmanager
    def restore(self) -> Iterator[Restoring]:
        """Counts the block as restoring a checkpoint; say ``found`` on what it gives."""
        restoring, began_ns, good = Restoring(), time.monotonic_ns(), False
        try:
            with self.phase("restore"):
                yield restoring
            good = True
        finally:
            self._count_restore(restoring, time.monotonic_ns() - began_ns, failed=not good)

    @guarded
    def _count_restore(self, restoring: Restoring, nanoseconds: int, *, failed: bool) -> None:
        write_restored(self._page, restoring, nanoseconds * 1e-9, failed=failed)
        self._seldom.commit(time.monotonic_ns())

    def describe(
        self, *, flops_per_token: float | None = None, peak_flops: float | None = None
    ) -> None:
        """Tells what MFU is reckoned from.

        Args:
            flops_per_token: model FLOPs of forward and backward, without recomputation.
            peak_flops: FLOP/s of this rank's device in the precision of the run.

        Raises:
            ValueError: one of them is no positive number.
        """
        for name, value in (("flops_per_token", flops_per_token), ("peak_flops", peak_flops)):
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(
                    f"{name} {value!r} must be a positive number; leave it out if unknown"
                )
            if value is not None:
                self._seldom.slots.know(name, float(value))
        self._seldom.commit(time.monotonic_ns())
