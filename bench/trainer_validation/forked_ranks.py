"""Starts ranks as forks of one process that has imported torch and the trainer.

An import of both takes some 2.7 s of processor time a rank, eight times that of training a tiny
model for some steps.
"""

import atexit
import multiprocessing
import os
import random
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from lockstep_trainer.__main__ import main

# The system gives ports from 32,768 on to connections of their own accord.
_NOT_EPHEMERAL = range(20_000, 32_000)
# A fork server and not plain forks: it has imported the trainer and done nothing else, so that no
# thread and no CUDA context is copied into a rank.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["lockstep_trainer.__main__", "trainer_validation.saving_rank"])


def fork_ranks(
    arguments: Sequence[str], *, num_ranks: int, environment: Mapping[str, str], log: Path
) -> list[BaseProcess]:
    """Starts the ranks of a job; each does what ``python -m lockstep_trainer`` does.

    Args:
        arguments: flags of the trainer.
        num_ranks: of the job.
        environment: variables of every rank, besides those that torchrun sets; they win.
        log: file that gets stdout and stderr of all ranks.
    """
    world = {
        "WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        **environment,
    }
    ranks: list[BaseProcess] = []
    for rank in range(num_ranks):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        arguments_of_rank = (main, list(arguments), own | world, log)
        ranks.append(FORKS.Process(target=run_program, args=arguments_of_rank))
        ranks[-1].start()
    return ranks


def run_program(
    program: Callable[[], object], arguments: list[str], environment: Mapping[str, str], log: Path
) -> None:
    """Runs a program's main function in this fork, with its own arguments and output."""
    os.environ.update(environment)
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv[1:] = arguments
    try:
        program()
    finally:
        # multiprocessing leaves by os._exit, without the exit handler that closes the rank's page.
        atexit._run_exitfuncs()  # noqa: SLF001  # no public way exists


def end_ranks(ranks: Sequence[BaseProcess]) -> None:
    """Kills the ranks that are still running, and waits for all."""
    for rank in ranks:
        rank.kill()
        rank.join()


def free_port() -> int:
    """A TCP port that nobody has, and that the system gives to no connection meanwhile."""
    for port in random.sample(_NOT_EPHEMERAL, 100):
        with socket.socket() as found:
            try:
                found.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("a hundred ports are taken")
