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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from plan import Course

from lockstep_records.file_access.atomic_file import write_atomically

HERE = Path(__file__).parent
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


@dataclass(frozen=True, slots=True)
class Launch:
    """How the ranks are started.

    Attributes:
        launcher: arguments of Python.
        separators: what the launcher needs between a script and its arguments.
        path: more of Python's search path.
        timeout_seconds: how long a run may take.
        ranks: how many.
        script: what each of them runs, of this folder.
    """

    launcher: tuple[str, ...] = _TORCHRUN
    separators: tuple[str, ...] = ()
    path: str = ""
    timeout_seconds: float = _TIMEOUT_SECONDS
    ranks: int = RANKS
    script: str = "loop.py"


def train(strategy: str, root: Path, course: Course, launch: Launch = Launch()) -> Path:
    """Runs all ranks to their end; the folder in which they left their pages.

    Args:
        strategy: one of ``STRATEGIES``.
        root: folder on a tmpfs.
        course: what they do.
        launch: how they are started.

    Raises:
        LateError: the training did not end.
        ClickException: it ended badly.
    """
    plan_file = root / "plan.json"
    course.write(plan_file)
    command = [sys.executable, *launch.launcher, "--nproc-per-node", str(launch.ranks)]
    command += [str(HERE / launch.script), *launch.separators, strategy, str(root), str(plan_file)]
    with subprocess.Popen(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": launch.path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as ranks:
        try:
            output, _ = ranks.communicate(timeout=launch.timeout_seconds)
        except subprocess.TimeoutExpired as late:
            _end(ranks)
            raise LateError(f"{strategy} did not end within {launch.timeout_seconds:g} s") from late
        except KeyboardInterrupt:
            # The ranks have a session of their own, so Ctrl-C does not reach them.
            _end(ranks)
            raise
    if ranks.returncode != 0:
        raise click.ClickException(f"{strategy} did not run:\n{output[-2000:]}")
    return root / "jobs" / strategy / "0"


def _end(ranks: subprocess.Popen[str]) -> None:
    """Terminates the launcher, which ends its ranks; kills its whole session if it does not end."""
    ranks.terminate()
    try:
        ranks.communicate(timeout=_END_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(ranks.pid, signal.SIGKILL)


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
