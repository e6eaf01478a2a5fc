"""Child processes that work beside a job, such as exporters: whatever becomes of them, it goes on.

A child is told of the job's end by the end of its standard input, which also comes when the
launcher dies.
"""

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import click


@dataclass(frozen=True, kw_only=True, slots=True)
class Child:
    """What to start beside a job: arguments to the Python interpreter, and its name in messages.

    Attributes:
        patience_seconds: how long it may take to finish after the job's end.
    """

    name: str
    arguments: tuple[str, ...]
    patience_seconds: float


@contextmanager
def beside(children: Sequence[Child]) -> Iterator[None]:
    """Runs children beside the block; afterwards they get their patience, and are killed then."""
    started = [(child, process) for child in children if (process := _start(child)) is not None]
    try:
        yield
    finally:
        ended = time.monotonic()
        for _, process in started:
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.close()
        for child, process in started:
            _wait(child, process, ended + child.patience_seconds)


def _start(child: Child) -> "subprocess.Popen[bytes] | None":
    try:
        return subprocess.Popen(
            [sys.executable, *child.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        click.echo(f"lockstep: {child.name} cannot be started: {error.strerror}", err=True)
        return None


def _wait(child: Child, process: "subprocess.Popen[bytes]", until: float) -> None:
    try:
        process.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        click.echo(
            f"lockstep: {child.name} was not through {child.patience_seconds:.0f} s after the job;"
            " what it had left is lost",
            err=True,
        )


def rounds(every_seconds: float, told_by: int = 0) -> Iterator[bool]:
    """In a child: a turn every so many seconds, and a last one, which is True, at the job's end.

    Args:
        every_seconds: from the end of a turn to the next.
        told_by: descriptor whose end tells of the job's end; standard input.
    """
    os.nice(10)
    while True:
        readable, _, _ = select.select([told_by], [], [], every_seconds)
        over = bool(readable) and not os.read(told_by, 4096)
        yield over
        if over:
            return
