"""The exit code of a worker is known even when another waited for it first."""

import sys
from subprocess import Popen

import pytest
from servers import wait_until

from lockstep.launch.workers import _wait_for


def worker(program: str) -> "Popen[bytes]":
    return Popen([sys.executable, "-c", program])


@pytest.mark.parametrize(
    ("program", "code"),
    [("raise SystemExit(3)", 3), ("", 0), ("import os; os.kill(os.getpid(), 9)", -9)],
)
def test_an_exit_code_is_that_of_the_process(program: str, code: int) -> None:
    assert _wait_for(worker(program)) == code


def test_an_exit_code_that_another_reaped_first_is_known() -> None:
    process = worker("raise SystemExit(3)")
    wait_until(lambda: process.poll() is not None, 40)
    assert _wait_for(process) == 3
