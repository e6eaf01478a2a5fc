"""Counts what the loop saves and loads outside a block of its own as checkpoints and restores.

A rank 0 that saves every so many steps makes the others wait: without the phase its lateness would
have no cause.
"""

import functools
import re
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from io import BytesIO
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch.distributed as dist

from lockstep.patches import waits

P = ParamSpec("P")
R = TypeVar("R")
_STEP_AT_END = re.compile(r"(\d+)\D*$")


# By thread: monitor, step and folder at the end of its last save.
_counted: dict[int, tuple[Callable[[], Any], int, Path | None]] = {}


def wrap_save(original: Callable[P, R]) -> Callable[P, R]:
    """Holds the phase while something is saved, and follows a save that goes on in the background.

    To memory only a mapping counts, a checkpoint's parts, which somebody writes from there. What
    a thread beside the loop saves is a checkpoint too, or a part of one that is under way.
    """

    @functools.wraps(original)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        folder, in_background = _folder_in(kwargs), waits.recorder_of_this_thread() is None
        monitor = waits.monitor_elsewhere() if in_background else waits.monitor_outside_blocks()
        kinds = [type(value) for value in (*args, *kwargs.values())]
        is_in_memory = any(issubclass(kind, BytesIO) for kind in kinds)
        if monitor is None or (is_in_memory and not any(issubclass(k, Mapping) for k in kinds)):
            return original(*args, **kwargs)
        if in_background and monitor.is_saving:
            return original(*args, **kwargs)
        with _block(monitor, folder, in_background=in_background) as saving:
            result = original(*args, **kwargs)
            if folder is not None and saving is not None:
                waits.run("checkpoints", _follow, saving, result, folder)
            return result

    return call


def wrap_load(original: Callable[P, R]) -> Callable[P, R]:
    """Counts a load of DCP as a restore."""

    @functools.wraps(original)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if (monitor := waits.monitor_outside_blocks()) is None:
            return original(*args, **kwargs)
        with monitor.restore() as restoring:
            result = original(*args, **kwargs)
            restoring.found(_step_in(_folder_in(kwargs)) or 0)
            return result

    return call


@contextmanager
def _block(monitor: Any, folder: Path | None, *, in_background: bool) -> Iterator[Any]:
    """A checkpoint; for a thread's next files before the end of a step only its time."""
    thread = threading.get_ident()
    counted, step, counted_folder = _counted.get(thread, (lambda: None, 0, None))
    # An id would come again with another monitor.
    is_same = counted() is monitor and step == monitor.next_step
    is_more = is_same and folder in {None, counted_folder}
    if not is_more:
        counted_folder = folder
        block = monitor.checkpoint(_step_in(folder), in_background=in_background)
    else:
        block = nullcontext() if in_background else monitor.phase("checkpoint")
    try:
        with block as saving:
            yield saving
    finally:
        _counted[thread] = weakref.ref(monitor), monitor.next_step, counted_folder


def _follow(saving: Any, result: object, folder: Path) -> None:
    """Counts the bytes of what DCP has written, now or when its future says that it has."""
    written = getattr(result, "upload_completion", result)
    has_ranks = dist.is_available() and dist.is_initialized()
    own_files = f"__{dist.get_rank() if has_ranks else 0}_*"

    def end(future: "Future[Any] | None" = None) -> None:
        size_bytes = sum(file.stat().st_size for file in folder.glob(own_files))
        if size_bytes:
            saving.wrote(size_bytes)
        if future is not None:
            saving.end(failed=future.exception() is not None)

    if isinstance(written, Future):
        saving.later()
        written.add_done_callback(lambda future: waits.run("checkpoints", end, future))
    else:
        end()


def _folder_in(arguments: Mapping[str, object]) -> Path | None:
    """The folder that a function of DCP is given; None for another saver."""
    given = arguments.get("checkpoint_id")
    return Path(given) if type(given) is str else given if issubclass(type(given), Path) else None  # type: ignore[return-value]  # a subclass of Path


def _step_in(folder: Path | None) -> int | None:
    """The last number in the name of a checkpoint's folder, by convention its step."""
    match = _STEP_AT_END.search(folder.name if folder else "")
    return int(match[1]) if match else None
