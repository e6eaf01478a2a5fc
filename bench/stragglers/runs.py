"""Starts the ranks of one run, and caches its result, so that a bench can be continued."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from plan import Course

from lockstep_records.file_access.atomic_file import write_atomically

_LOOP = Path(__file__).with_name("loop.py")
RANKS = 4
STRATEGIES = ("ddp", "fsdp2", "pipeline")
_TORCHRUN = ("-m", "torch.distributed.run", "--standalone")
_TIMEOUT_SECONDS = 3600.0
_END_SECONDS = 45.0  # torchrun gives its ranks 30


class LateError(click.ClickException):
    """The ranks did not end before the timeout."""


@contextmanager
def root_folder() -> Iterator[Path]:
    """A folder on the tmpfs that pages need, for one run."""
    root = Path(tempfile.mkdtemp(prefix="lockstep-bench-", dir="/dev/shm"))
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def train(strategy: str, root: Path, course: Course, ranks: int = RANKS) -> Path:
    """Runs all ranks to their end; the folder in which they left their pages.

    Args:
        strategy: one of ``STRATEGIES``.
        root: folder on a tmpfs.
        course: what they do.
        ranks: how many.

    Raises:
        LateError: the training did not end.
        ClickException: it ended badly.
    """
    plan_file = root / "plan.json"
    course.write(plan_file)
    command = [sys.executable, *_TORCHRUN, "--nproc-per-node", str(ranks)]
    command += [str(_LOOP), strategy, str(root), str(plan_file)]
    with subprocess.Popen(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as launcher:
        try:
            output, _ = launcher.communicate(timeout=_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired as late:
            _end(launcher)
            raise LateError(f"{strategy} did not end within {_TIMEOUT_SECONDS:g} s") from late
        except KeyboardInterrupt:
            # The ranks have a session of their own, so Ctrl-C does not reach them.
            _end(launcher)
            raise
    if launcher.returncode != 0:
        raise click.ClickException(f"{strategy} did not run:\n{output[-2000:]}")
    return root / "jobs" / strategy / "0"


def _end(launcher: subprocess.Popen[str]) -> None:
    """Terminates the launcher, which ends its ranks; kills its whole session if it does not end."""
    launcher.terminate()
    try:
        launcher.communicate(timeout=_END_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(launcher.pid, signal.SIGKILL)


def cached(file: Path | None, produce: Callable[[], Any]) -> Any:
    """The result in a file of an earlier run of the bench; else a new one, written to the file.

    Args:
        file: JSON; None caches nothing.
        produce: returns a value that JSON can hold.
    """
    if file is not None and file.is_file():
        return json.loads(file.read_text(encoding="utf-8"))
    result = produce()
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Atomic, so that an interrupted run leaves no half result for the next one.
        write_atomically(file, (json.dumps(result, indent=1) + "\n").encode())
    return result
