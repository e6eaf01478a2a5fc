"""Child processes that run next to a job, such as exporters; their failure never stops the job.

The end of a child's standard input means the end of the job. It also comes when the launcher dies.
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
    """A process to start with a job, and the seconds that it has after the job's end."""

    name: str
    arguments: tuple[str, ...]
    timeout_seconds: float


@contextmanager
def run_sidecars(children: Sequence[Child]) -> Iterator[None]:
    """Runs children during the block; each is killed when its time-out after the block is over."""
    started = [(child, process) for child in children if (process := _start(child)) is not None]
    try:
        yield
    finally:
        job_end = time.monotonic()
        for _, process in started:
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.close()
        for child, process in started:
            _wait(child, process, job_end + child.timeout_seconds)


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


def _wait(child: Child, process: "subprocess.Popen[bytes]", deadline: float) -> None:
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        click.echo(
            f"lockstep: {child.name} had not finished {child.timeout_seconds:.0f} s after the job;"
            " the rest of its work is lost",
            err=True,
        )


def rounds(interval_seconds: float, descriptor: int = 0) -> Iterator[bool]:
    """In a child: one round after each interval, and a last one, which is True, at the job's end.

    Args:
        interval_seconds: time from the end of a round to the next.
        descriptor: file descriptor whose end of file is the job's end; standard input by default.
    """
    # The ranks go first where the node's cores are all in use.
    os.nice(10)
    is_last = False
    while not is_last:
        readable, _, _ = select.select([descriptor], [], [], interval_seconds)
        is_last = bool(readable) and not os.read(descriptor, 4096)
        yield is_last
