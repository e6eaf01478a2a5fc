"""The end of a rank: its last exception goes beside its page, and it waits for gloo's threads.

A thread of gloo that drops a tensor of Python's while the interpreter ends makes torch abort the
process ("terminate called without an active exception", pytorch/pytorch#190489). A rank that has
trained to its end would be one that failed.
"""

import os
import sys
import time
import traceback
from multiprocessing import parent_process
from multiprocessing.util import Finalize
from pathlib import Path
from types import TracebackType

from lockstep.guard import Parts
from lockstep_records.files.last_output import RankError, write_error

_THREADS = Path("/proc/self/task")
_NAME = "pt_gloo_runloop"
_TIMEOUT_SECONDS = 0.5
_POLL_SECONDS = 0.001
# A thread that waits for the interpreter's lock sleeps too, until this one sleeps.
_IDLE_POLLS = 2


def wait_for_gloo(timeout_seconds: float = _TIMEOUT_SECONDS) -> None:
    """Returns once gloo's threads wait for work, or after the time-out."""
    threads = [task for task in _THREADS.iterdir() if _read(task / "comm").strip() == _NAME]
    deadline = time.monotonic() + timeout_seconds
    num_idle_polls = 0
    # A destroyed group has its threads for as long as a mesh or a sharded module refers to it.
    while threads and num_idle_polls < _IDLE_POLLS and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        is_idle = all(_is_asleep(task) for task in threads)
        num_idle_polls = num_idle_polls + 1 if is_idle else 0


def _is_asleep(thread: Path) -> bool:
    state = _read(thread / "stat").rpartition(")")[2].split()
    return not state or state[0] == "S"


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the thread has ended
        return ""


def record_last_error(page: Path, parts: Parts) -> None:
    """Sets a hook in front of ``sys.excepthook``, which still gets the exception.

    Args:
        page: path of the rank's page; the error goes beside it.
        parts: of the monitor; an error of ours must not hide that of the user.
    """
    passed_on, process = sys.excepthook, os.getpid()

    def hook(kind: type[BaseException], error: BaseException, stack: TracebackType | None) -> None:
        # A forked child has the hook too, and an interrupt does not count as a failure.
        if os.getpid() == process and issubclass(kind, Exception):
            parts.run("last_error", _write, page, error, stack)
        passed_on(kind, error, stack)

    sys.excepthook = hook
    if parent_process() is not None:
        # Before the monitor is closed, at priority 0.
        Finalize(None, parts.run, ("last_error", _record_error_of_child, page), exitpriority=1)


def _record_error_of_child(page: Path) -> None:
    """Records what ends a process of multiprocessing, which never reaches ``sys.excepthook``."""
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit):  # torch's spawn exits while it handles the loop's exception
        error = error.__context__ if error.code else None
    if isinstance(error, Exception):
        sys.last_value = error
        _write(page, error, error.__traceback__)


def _write(page: Path, error: BaseException, stack: TracebackType | None) -> None:
    frames = traceback.extract_tb(stack)
    innermost = frames[-1] if frames else None
    kind = type(error)
    # As the interpreter prints it: a built-in has no module before its name.
    prefix = "" if kind.__module__ in {"builtins", "__main__"} else f"{kind.__module__}."
    rank_error = RankError(
        source="except_hook",
        type=f"{prefix}{kind.__qualname__}",
        message=str(error),
        file=innermost.filename if innermost else None,
        line=innermost.lineno if innermost else None,
        function=innermost.name if innermost else None,
        traceback="".join(traceback.format_exception(error)),
        time=time.time(),
    )
    write_error(page, rank_error)
