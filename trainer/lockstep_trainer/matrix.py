"""Every strategy and hybrid on CPU: falling loss, resume equal, and equal to one process.

``python -m lockstep_trainer.matrix`` prints a table as it goes; exit status 1 if anything is wrong.
"""

import json
import multiprocessing
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import click
import torch

from lockstep_records.jobs import find_root, page_path
from lockstep_records.page.reader import read_page, read_rows
from lockstep_trainer.__main__ import main
from lockstep_trainer.checkpoints.files import folder_of
from lockstep_trainer.checkpoints.shards import read_whole

STEPS, RESUMED_FROM, GLOBAL_BATCH = 8, 4, 8
_SHAPE = (
    "--layers 4 --width 32 --heads 4 --sequence 32 --warmup 2 --log-every 0 --eval-every 1 "
    f"--eval-windows 16 --steps {STEPS} --checkpoint-every {RESUMED_FROM}"
).split()
_LIMIT_SECONDS = 180
_POLL_SECONDS = 0.05
_JOB = "matrix"
# Ranks are forked from a process that has imported the trainer and done nothing else: two cores
# take longer to import torch eight times than to train eight ranks.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["lockstep_trainer.__main__"])
# All resume to the bit but DDP on more than two ranks: after the first step of a process it orders
# its gradients anew, and so gloo's sums.
_RESUME_TOLERANCE = 1e-5
# float32 sums in another order differ by about 1e-7 of a gradient; AdamW divides by its size, so
# weights whose gradient is nearly nothing may step the other way, and eight steps add up.
_FLOAT32_TOLERANCE = 1e-4
# bfloat16 keeps 8 bits: a product is right to 0.4 %.
_BFLOAT16_TOLERANCE = 2e-2


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One layout, with flags that make its global batch that of all others."""

    name: str
    ranks: int
    flags: str

    @property
    def tolerance(self) -> float:
        """Largest difference from one process, in nats and in shares of a gradient norm."""
        return _BFLOAT16_TOLERANCE if "bfloat16" in self.flags else _FLOAT32_TOLERANCE


_MOE = "--experts 4"
DENSE_ALONE = Case(name="one process", ranks=1, flags="--batch 4 --accumulate 2")
MOE_ALONE = Case(name="one process, experts", ranks=1, flags=f"--batch 2 --accumulate 4 {_MOE}")
CASES = tuple(
    Case(name=name, ranks=ranks, flags=flags)
    for name, ranks, flags in (
        ("ddp", 2, "--batch 4"),
        ("ddp accumulate recompute", 2, "--batch 2 --accumulate 2 --recompute"),
        ("ddp bfloat16", 4, "--batch 2 --dtype bfloat16"),
        ("fsdp2", 2, "--strategy fsdp2 --batch 2 --accumulate 2"),
        ("fsdp2 kept bfloat16", 4, "--strategy fsdp2 --batch 2 --keep-gathered --dtype bfloat16"),
        ("hsdp", 4, "--strategy fsdp2 --dp 2 --batch 2"),
        ("pp gpipe", 2, "--strategy pp --schedule gpipe --batch 8"),
        ("pp 1f1b", 4, "--strategy pp --schedule 1f1b --batch 4 --accumulate 2"),
        ("pp interleaved", 2, "--strategy pp --schedule interleaved --batch 8"),
        ("tp", 2, "--strategy tp --batch 8"),
        ("tp recompute", 4, "--strategy tp --batch 4 --accumulate 2 --recompute"),
        ("ep", 2, f"--strategy ep --batch 2 --accumulate 2 {_MOE}"),
        ("dp x ep", 4, f"--strategy ep --ep 2 --dp 2 --batch 2 {_MOE}"),
        ("fsdp x tp", 4, "--strategy hybrid --fsdp 2 --tp 2 --batch 4"),
        ("dp x pp", 4, "--strategy hybrid --dp 2 --pp 2 --batch 4 --schedule interleaved"),
        ("pp x tp", 4, "--strategy hybrid --pp 2 --tp 2 --batch 8"),
        ("dp x pp x tp", 8, "--strategy hybrid --dp 2 --pp 2 --tp 2 --batch 4"),
    )
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What a finished run left.

    Attributes:
        losses: held-out, by step.
        norms: of the gradient before clipping, by step, as rank 0's page has them.
    """

    losses: dict[int, float]
    norms: dict[int, float]
    state: dict[str, torch.Tensor]


class FailedRunError(Exception):
    """A run did not end well; the text is the end of what it said."""


def run(case: Case, folder: Path, *, resume_from: Path | None = None) -> Run:
    """Trains a case in a folder of its own, its ranks started by no launcher.

    Raises:
        FailedRunError: a rank failed, or the run took too long.
    """
    checkpoints, summary = folder / "checkpoints", folder / "summary.json"
    checkpoints.mkdir(parents=True)
    more: list[str] = []
    if resume_from is not None:
        done = f"step-{RESUMED_FROM:08d}"
        shutil.copytree(resume_from / "checkpoints" / done, checkpoints / done)
        more = ["--resume"]
    where = ["--checkpoint-dir", str(checkpoints), "--summary", str(summary)]
    _start([*where, *_SHAPE, *case.flags.split(), *more], case.ranks, folder)
    rows = read_rows(read_page(page_path(folder, _JOB, 0, 0)))
    return Run(
        losses={
            int(step): loss for step, loss in json.loads(summary.read_text())["losses"].items()
        },
        norms={int(row["step"]): float(row["gradient_norm"]) for row in rows},
        state=read_whole(folder_of(checkpoints, STEPS)),
    )


def _start(arguments: Sequence[str], ranks: int, folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {"LOCKSTEP_DIR": folder, "LOCKSTEP_JOB_ID": _JOB, "OMP_NUM_THREADS": 1}
    world = {**job, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    said = folder / "said"
    started: list[BaseProcess] = []
    for rank in range(ranks):
        told = {name: str(value) for name, value in {**world, "RANK": rank}.items()}
        started.append(_FORKS.Process(target=_be_rank, args=(list(arguments), told, said)))
    try:
        for process in started:
            process.start()
        _wait(started)
    except FailedRunError as error:
        raise FailedRunError(f"{error}: {said.read_text()[-2000:]}") from error
    finally:
        for process in started:
            process.kill()
            process.join()


def _be_rank(arguments: list[str], environment: dict[str, str], said: Path) -> None:
    """What ``python -m lockstep_trainer`` does, in a process that is fresh but has torch loaded."""
    os.environ.update(environment)
    with said.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv[1:] = arguments
    main()


def _wait(processes: Sequence[BaseProcess]) -> None:
    """Until all have ended well; the first that did not ends the waiting."""
    until = time.monotonic() + _LIMIT_SECONDS
    while time.monotonic() < until:
        codes = [process.exitcode for process in processes]
        if failed := [code for code in codes if code]:
            raise FailedRunError(f"exit status {failed[0]}")
        if not any(code is None for code in codes):
            return
        time.sleep(_POLL_SECONDS)
    raise FailedRunError(f"not done after {_LIMIT_SECONDS} seconds")


def faults_of(case: Case, whole: Run, resumed: Run, alone: Run) -> Iterator[str]:
    """What is wrong with a case, if anything."""
    if not whole.losses[STEPS] < whole.losses[1]:
        yield f"the loss did not fall: {whole.losses}"
    if (apart := resume_difference(whole, resumed)) > _RESUME_TOLERANCE:
        yield f"the resumed run is {apart:g} apart from the uninterrupted one"
    if (apart := difference(whole.losses, alone.losses)) > case.tolerance:
        yield f"the losses are {apart:g} nats apart from those of one process"
    if (apart := difference(whole.norms, alone.norms, relative=True)) > case.tolerance:
        yield f"the gradient norms are {apart:.2%} apart from those of one process"


def resume_difference(whole: Run, resumed: Run) -> float:
    """Largest difference of any number in the last checkpoints; 0 when they agree to the bit."""
    assert whole.state.keys() == resumed.state.keys()
    return max(float((whole.state[n] - resumed.state[n]).abs().max()) for n in whole.state)


def difference(one: dict[int, float], other: dict[int, float], *, relative: bool = False) -> float:
    """Largest difference at any step; infinite when the steps are not the same."""
    if one.keys() != other.keys():
        return float("inf")
    return max(abs(one[s] - other[s]) / (abs(other[s]) if relative else 1.0) for s in one)


def row(case: Case, whole: Run, resumed: Run, alone: Run, seconds: float) -> str:
    """The line of a case in the table."""
    apart = resume_difference(whole, resumed)
    return (
        f"{case.name:<25} {case.ranks:>5}  {whole.losses[1]:.3f} -> {whole.losses[STEPS]:.3f}  "
        f"{'to the bit' if apart == 0 else f'{apart:.1e}':<10}  "
        f"{difference(whole.losses, alone.losses):.1e}  "
        f"{difference(whole.norms, alone.norms, relative=True):.1e}  {seconds:>6.0f} s"
    )


@click.command()
@click.option("--only", multiple=True, help="Name of a case; several may be given; all by default.")
def matrix(*, only: tuple[str, ...]) -> None:
    """Train every layout twice, the second time resumed, and compare."""
    unknown = set(only) - {case.name for case in CASES}
    if unknown:
        names = ", ".join(case.name for case in CASES)
        raise click.UsageError(f"--only {unknown.pop()!r} is none of {names}")
    root = find_root(os.environ)
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="matrix-", dir=root) as folder:
        failed = _run_all([case for case in CASES if not only or case.name in only], Path(folder))
    if failed:
        raise click.ClickException(f"{failed} cases are wrong")


def _run_all(cases: Sequence[Case], folder: Path) -> int:
    """Prints a line per case and gives the number of those that are wrong."""
    began = time.monotonic()
    alone = {
        moe: run(case, folder / case.name)
        for moe, case in ((False, DENSE_ALONE), (True, MOE_ALONE))
        if any((_MOE in one.flags) == moe for one in cases)
    }
    click.echo(f"{'':<25} {'':>5}  {'':<14}  {'':<10}  differs from one process")
    click.echo(f"{'layout':<25} ranks  held-out loss   resumed     loss     norm          time")
    failed = 0
    for case in cases:
        failed += not _passes(case, folder / case.name, alone[_MOE in case.flags])
    click.echo(f"{len(cases) - failed} of {len(cases)} right, {time.monotonic() - began:.0f} s")
    return failed


def _passes(case: Case, folder: Path, alone: Run) -> bool:
    began = time.monotonic()
    try:
        whole = run(case, folder / "whole")
        resumed = run(case, folder / "resumed", resume_from=folder / "whole")
    except FailedRunError as error:
        click.echo(f"{case.name:<25} {case.ranks:>5}  failed: {error}")
        return False
    faults = list(faults_of(case, whole, resumed, alone))
    click.echo(row(case, whole, resumed, alone, time.monotonic() - began))
    for fault in faults:
        click.echo(f"    {fault}")
    return not faults


if __name__ == "__main__":
    matrix()
