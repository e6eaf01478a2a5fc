"""Runs small jobs for tests: ranks as forks of one process that has imported torch.

A rank that is started as a program spends nine tenths of its time on imports. The launcher is a
fork too, but starts its ranks as programs, as users do: only tests of the launcher use it.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from trainer_validation.forked_ranks import FORKS, end_ranks, fork_ranks, run_program

from lockstep_cli.main import main as lockstep

FORKS.set_forkserver_preload(
    [
        "lockstep_cli.main",
        "lockstep.launch.workers",
        "lockstep_trainer.commands.train",
        "lockstep_trainer.preflight",
        "lockstep_trainer.__main__",
        "trainer_validation.saving_rank",
    ]
)
TINY = "--batch 2 --sequence 32 --layers 2 --width 32 --heads 2 --eval-windows 4 --log-every 1"
JOB_ID = "tried"
_TIMEOUT_SECONDS = 100
_NUMBERS = itertools.count()


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a job ended: exit codes of the ranks, or of the launcher alone, and all output."""

    codes: tuple[int, ...]
    output: str


@contextmanager
def started(
    arguments: str,
    *,
    folder: Path,
    num_ranks: int = 1,
    environment: Mapping[str, str] | None = None,
) -> Iterator[tuple[list[BaseProcess], Path]]:
    """Starts ranks without a launcher; gives them and their log, and ends those that are left."""
    log = _new_log(folder)
    job = {"LOCKSTEP_DIR": str(folder), "LOCKSTEP_JOB_ID": JOB_ID, **(environment or {})}
    ranks = fork_ranks(arguments.split(), num_ranks=num_ranks, environment=job, log=log)
    try:
        yield ranks, log
    finally:
        end_ranks(ranks)


def run_ranks(
    arguments: str,
    *,
    folder: Path,
    num_ranks: int = 1,
    environment: Mapping[str, str] | None = None,
) -> Outcome:
    """Runs ranks without a launcher to their end; pages and logs lie in the folder."""
    with started(arguments, folder=folder, num_ranks=num_ranks, environment=environment) as (
        ranks,
        log,
    ):
        return Outcome(codes=_wait(ranks, log), output=log.read_text())


def run_launcher(arguments: str, *, folder: Path) -> Outcome:
    """Runs ``lockstep train`` with two ranks to its end."""
    job = f"train --nproc-per-node 2 --dir {folder} --job-id {JOB_ID} {arguments}"
    return run_fork(lockstep, job, folder=folder)


def run_fork(
    program: Callable[[], object], arguments: str, *, folder: Path, **environment: str
) -> Outcome:
    """Runs the main function of any program in one fork to its end."""
    log = _new_log(folder)
    fork = FORKS.Process(target=run_program, args=(program, arguments.split(), environment, log))
    fork.start()
    try:
        return Outcome(codes=_wait([fork], log), output=log.read_text())
    finally:
        end_ranks([fork])


def _new_log(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"log-{next(_NUMBERS)}"
    log.touch()
    return log


def _wait(processes: Sequence[BaseProcess], log: Path) -> tuple[int, ...]:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    codes = [process.exitcode for process in processes]
    assert None not in codes, log.read_text()
    return tuple(code for code in codes if code is not None)
