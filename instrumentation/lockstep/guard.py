"""Keeps our own errors out of the training loop: a part that fails goes off, the others go on."""

import functools
import logging
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from lockstep_catalogue.training import PART
from lockstep_records.page.layout import PERIODIC, SLOT
from lockstep_records.page.writer import PageWriter

log = logging.getLogger("lockstep")
P = ParamSpec("P")
R = TypeVar("R")
_PART_ERRORS = PERIODIC.word("part_errors")
_ALL_ERRORS = SLOT.word("internal_errors")

LOST = {
    "versions": "versions of torch and NCCL are not recorded",
    "gpu_identity": "the GPU has no rank in the agent's series",
    "process_age": "the time before attach does not count as start-up",
    "earlier_attempts": "work that an earlier attempt did does not count as rework",
    "logs": "logs have no step",
    "spans": "slow steps, checkpoints and evaluations have no spans",
    "memory": "memory of the process and of its GPU is not recorded",
    "garbage_collection": "pauses of the garbage collector are not counted",
    "page_check": "a page that is deleted under the run is not noticed",
    "loop_check": "a loop that ends no step is not noticed",
    "anomalies": "losses and slow steps are not judged",
    "loop_numbers": "a number that cannot be read is left out",
    "device_numbers": "losses that are on the GPU are not read",
    "device_events": "seconds of the GPU's stream are not recorded",
    "operations": "operations inside sampled steps are not recorded",
    "switches": "switches that are set during the run have no effect",
    "hang_watch": "no stacks are written in a hang",
    "flight_recorder": "a hang leaves no Flight Recorder dump",
    "profiler": "no traces are taken on request",
    "forward": "forward and backward count as other",
    "backward": "the backward counts as other work",
    "optimizer": "the optimizer's steps count as other",
    "gradient_buckets": "DDP's synchronisation has no sizes and may count as backward",
    "collectives": "collectives have no kinds and sizes, or count as work",
    "pipeline": "a pipeline stage's chunks and transfers have no names, or its waits count as work",
    "fingerprints": "replicas are not compared",
    "checkpoints": "checkpoints are not counted",
    "restores": "restores are not counted",
    "blocks": "exceptions that leave a block, and figures for MFU, are not recorded",
    "forks": "forks of the process are not counted",
    "last_error": "the error that ends the process is not recorded",
}
"""What is lost with each part of a monitor; the end of a sentence in the log."""
assert tuple(LOST) == PART.values
_INDICES = {part: index for index, part in enumerate(LOST)}


class Parts:
    """The parts of one rank's monitor: what fails is counted, logged once and off from then on."""

    def __init__(self) -> None:
        self._errors = dict.fromkeys(LOST, 0)
        self._removals: dict[str, Callable[[], object]] = {}
        self._page: PageWriter | None = None

    def is_off(self, part: str) -> bool:
        """Whether the part has failed."""
        return self._errors[part] > 0

    def run(
        self, part: str, call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R | None:
        """Result of a call of a part; None where the part is off or the call fails."""
        if self._errors[part]:
            return None
        try:
            return call(*args, **kwargs)
        # Not BaseException: KeyboardInterrupt and SystemExit are the user's.
        except Exception as error:  # noqa: BLE001  # the guard of a part
            self.fail(part, error)
            return None

    def fail(self, part: str, error: Exception) -> None:
        """Counts an error of a part, and has what is left of the part removed."""
        self._errors[part] += 1
        if self._page is not None:
            self._count(self._page, part, 1)
        if self._errors[part] > 1:
            return
        log.warning(
            "part %s of the monitor is off after an error of its own: %s; "
            "training goes on and all else is recorded: %r",
            part,
            LOST[part],
            error,
        )
        remove = self._removals.pop(part, None)
        if remove is not None:
            outcome_of(remove)

    def call_when_off(self, part: str, remove: Callable[[], object]) -> None:
        """Calls ``remove`` once, when the part goes off."""
        self._removals[part] = remove

    def write_to(self, page: PageWriter | None) -> None:
        """Counts errors in a page, also those from before; None once the page is closed."""
        self._page = page
        if page is not None:
            for part, count in self._errors.items():
                self._count(page, part, count)

    @staticmethod
    def _count(page: PageWriter, part: str, count: int) -> None:
        page.periodic.words[_PART_ERRORS + _INDICES[part]] += count
        page.words[_ALL_ERRORS] += count


class NoParts(Parts):
    """The parts of a monitor that is off: none of them runs."""

    def run(self, *_: Any, **__: Any) -> None:
        """Does nothing."""


def part_of(
    part: str,
) -> Callable[[Callable[Concatenate[Any, P], None]], Callable[Concatenate[Any, P], None]]:
    """Makes a method a call of a part: nothing where that is off, and no error gets out of it."""

    def decorate(
        method: Callable[Concatenate[Any, P], None],
    ) -> Callable[Concatenate[Any, P], None]:
        def safely(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> None:
            self.parts.run(part, method, self, *args, **kwargs)

        functools.update_wrapper(safely, method)
        return safely

    return decorate


def guarded(method: Callable[Concatenate[Any, P], None]) -> Callable[Concatenate[Any, P], None]:
    """Hands every exception of a method to ``fail``; an interrupt or exit of the user's passes."""

    def safely(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001  # the guard of the recorder itself
            self.fail(error)

    functools.update_wrapper(safely, method)
    return safely


def outcome_of(call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R | Exception:
    """Result of a call, or the error that it raised."""
    try:
        return call(*args, **kwargs)
    except Exception as error:  # noqa: BLE001  # attach and close raise nothing of ours
        return error
