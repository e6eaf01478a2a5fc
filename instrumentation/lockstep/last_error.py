"""Writes the exception that ends a rank beside its page: what it was, and where."""

import os
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType

from lockstep.guard import Parts
from lockstep_records.last_output import RankError, write_error


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
