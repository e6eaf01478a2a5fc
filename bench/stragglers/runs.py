"""Starts the ranks of one run, and keeps what came of it, so that a bench may go on later."""

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

HERE = Path(__file__).parent
RANKS = 4
STRATEGIES = ("ddp", "fsdp2", "pipeline")
_TORCHRUN = ("-m", "torch.distributed.run", "--standalone")
_PATIENCE_SECONDS = 3600.0
_END_SECONDS = 45.0  # torchrun gives its ranks 30


class LateError(click.ClickException):
    """The ranks did not end in their time."""


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
        between: what the launcher wants between a script and its arguments.
        path: more of Python's search path.
        patience_seconds: how long a run may take.
        ranks: how many.
    """

    launcher: tuple[str, ...] = _TORCHRUN
    between: tuple[str, ...] = ()
    path: str = ""
    patience_seconds: float = _PATIENCE_SECONDS
    ranks: int = RANKS


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
    told = root / "plan.json"
    course.write(told)
    command = [sys.executable, *launch.launcher, "--nproc-per-node", str(launch.ranks)]
    command += [str(HERE / "loop.py"), *launch.between, strategy, str(root), str(told)]
    with subprocess.Popen(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": launch.path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as ranks:
        try:
            said, _ = ranks.communicate(timeout=launch.patience_seconds)
        except subprocess.TimeoutExpired as late:
            _end(ranks)
            raise LateError(
                f"{strategy} did not end within {launch.patience_seconds:g} s"
            ) from late
    if ranks.returncode != 0:
        raise click.ClickException(f"{strategy} did not run:\n{said[-2000:]}")
    return root / "jobs" / strategy / "0"


def _end(ranks: subprocess.Popen[str]) -> None:
    """The launcher ends its ranks; who does not end is killed, with all that it started."""
    ranks.terminate()
    try:
        ranks.communicate(timeout=_END_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(ranks.pid, signal.SIGKILL)


def kept(file: Path | None, make: Callable[[], Any]) -> Any:
    """What a file has from an earlier run of the bench; else it is made, and kept there.

    Args:
        file: JSON; None keeps nothing.
        make: gives values that JSON can hold.
    """
    if file is not None and file.is_file():
        return json.loads(file.read_text(encoding="utf-8"))
    made = make()
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = file.with_suffix(".new")
        beside.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
        beside.replace(file)
    return made
