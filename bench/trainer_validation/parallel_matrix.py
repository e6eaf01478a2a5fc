"""Every strategy and hybrid on CPU: the loss falls, a resume is exact, all equal one process.

``make train-matrix`` runs it and prints a table as it goes; exit status 1 if a layout fails.
"""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import click
import torch

from lockstep_records.files.jobs import find_root, page_path
from lockstep_records.page.reader import read_page, read_rows
from lockstep_trainer.checkpoints.files import folder_of
from trainer_validation.forked_ranks import end_ranks, fork_ranks
from trainer_validation.tensors import read_all_tensors

# Eight steps show a falling loss, and the resume in the middle leaves four on either side.
STEPS, RESUMED_FROM = 8, 4
_SHAPE = (
    "--layers 4 --width 32 --heads 4 --sequence 32 --warmup 2 --log-every 0 --eval-every 1 "
    f"--eval-windows 16 --steps {STEPS} --checkpoint-every {RESUMED_FROM}"
).split()
_TIMEOUT_SECONDS = 180
_POLL_SECONDS = 0.05
_JOB = "matrix"
# All layouts resume to the bit except DDP on more than two ranks: after the first step of a process
# DDP rebuilds its buckets, which changes the order of gloo's sums.
_RESUME_TOLERANCE = 1e-5
# float32 sums in another order differ by about 1e-7 of a gradient; AdamW divides by its size, so
# weights with a gradient near zero may step the other way, and eight steps add up.
_FLOAT32_TOLERANCE = 1e-4
# bfloat16 has 8 significant bits: a product is exact to 0.4 %.
_BFLOAT16_TOLERANCE = 2e-2


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One layout; its flags give it the same global batch as all others."""

    name: str
    ranks: int
    flags: str

    @property
    def tolerance(self) -> float:
        """Largest difference from one process: in nats, and relative to a gradient norm."""
        return _BFLOAT16_TOLERANCE if "bfloat16" in self.flags else _FLOAT32_TOLERANCE


_MOE = "--experts 4"
DENSE_REFERENCE = Case(name="one process", ranks=1, flags="--batch 4 --accumulate 2")
MOE_REFERENCE = Case(name="one process, experts", ranks=1, flags=f"--batch 2 --accumulate 4 {_MOE}")
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
        # Of several ranks it is another algorithm: only alone it equals one process.
        ("local sgd", 1, "--strategy local-sgd --round-steps 3 --batch 4 --accumulate 2"),
        ("dp x pp x tp", 8, "--strategy hybrid --dp 2 --pp 2 --tp 2 --batch 4"),
    )
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Result of a finished run.

    Attributes:
        losses: held-out loss in nats, by step.
        norms: gradient norm before clipping, by step, from rank 0's page.
        state: tensors of the last checkpoint, by name.
    """

    losses: dict[int, float]
    norms: dict[int, float]
    state: dict[str, torch.Tensor]


class FailedRunError(Exception):
    """A run failed; the text is the end of its output."""


def run(case: Case, folder: Path, *, resume_from: Path | None = None) -> Run:
    """Trains a case in its own folder, without a launcher.

    Raises:
        FailedRunError: a rank failed, or the run timed out.
    """
    checkpoints, summary = folder / "checkpoints", folder / "summary.json"
    checkpoints.mkdir(parents=True)
    resume: list[str] = []
    if resume_from is not None:
        done = f"step-{RESUMED_FROM:08d}"
        shutil.copytree(resume_from / "checkpoints" / done, checkpoints / done)
        resume = ["--resume"]
    outputs = ["--checkpoint-dir", str(checkpoints), "--summary", str(summary)]
    _train([*outputs, *_SHAPE, *case.flags.split(), *resume], case.ranks, folder)
    rows = read_rows(read_page(page_path(folder, _JOB, 0, 0)))
    return Run(
        losses={
            int(step): loss for step, loss in json.loads(summary.read_text())["losses"].items()
        },
        norms={int(row["step"]): float(row["gradient_norm"]) for row in rows},
        state=read_all_tensors(folder_of(checkpoints, STEPS)),
    )


def _train(arguments: Sequence[str], num_ranks: int, folder: Path) -> None:
    log, environment = folder / "log", {"LOCKSTEP_DIR": str(folder), "LOCKSTEP_JOB_ID": _JOB}
    ranks = fork_ranks(arguments, num_ranks=num_ranks, environment=environment, log=log)
    try:
        _wait(ranks)
    except FailedRunError as error:
        raise FailedRunError(f"{error}: {log.read_text()[-2000:]}") from error
    finally:
        end_ranks(ranks)


def _wait(processes: Sequence[BaseProcess]) -> None:
    """Waits until all have succeeded.

    Raises:
        FailedRunError: one failed, or the time is over.
    """
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        codes = [process.exitcode for process in processes]
        if failed := [code for code in codes if code]:
            raise FailedRunError(f"exit status {failed[0]}")
        if not any(code is None for code in codes):
            return
        time.sleep(_POLL_SECONDS)
    raise FailedRunError(f"not done after {_TIMEOUT_SECONDS} seconds")


def violations(case: Case, full: Run, resumed: Run, reference: Run) -> Iterator[str]:
    """One sentence for each property that a case violates.

    Args:
        case: the layout.
        full: its uninterrupted run.
        resumed: its run that resumed from a checkpoint of ``full``.
        reference: the run of one process.
    """
    if not full.losses[STEPS] < full.losses[1]:
        yield f"the loss did not fall: {full.losses}"
    if (gap := resume_difference(full, resumed)) > _RESUME_TOLERANCE:
        yield f"the resumed run differs by {gap:g} from the uninterrupted one"
    if (gap := difference(full.losses, reference.losses)) > case.tolerance:
        yield f"the losses differ by {gap:g} nats from those of one process"
    # AdamW divides the scale of a gradient out of the loss; only the norm shows a wrong scale.
    if (gap := difference(full.norms, reference.norms, relative=True)) > case.tolerance:
        yield f"the gradient norms differ by {gap:.2%} from those of one process"


def resume_difference(full: Run, resumed: Run) -> float:
    """Largest difference of any number in the last checkpoints; 0 when they agree to the bit."""
    assert full.state.keys() == resumed.state.keys()
    return max(float((full.state[n] - resumed.state[n]).abs().max()) for n in full.state)


def difference(
    values: dict[int, float], reference: dict[int, float], *, relative: bool = False
) -> float:
    """Largest difference at any step; infinite when the steps are not the same."""
    if values.keys() != reference.keys():
        return float("inf")
    return max(
        abs(values[step] - reference[step]) / (abs(reference[step]) if relative else 1.0)
        for step in values
    )


def row(case: Case, full: Run, resumed: Run, reference: Run, seconds: float) -> str:
    """The line of a case in the table."""
    gap = resume_difference(full, resumed)
    return (
        f"{case.name:<25} {case.ranks:>5}  {full.losses[1]:.3f} -> {full.losses[STEPS]:.3f}  "
        f"{'to the bit' if gap == 0 else f'{gap:.1e}':<10}  "
        f"{difference(full.losses, reference.losses):.1e}  "
        f"{difference(full.norms, reference.norms, relative=True):.1e}  {seconds:>6.0f} s"
    )


@click.command()
@click.option("--only", multiple=True, help="Name of a layout; repeatable; default: all.")
def matrix(*, only: tuple[str, ...]) -> None:
    """Train every layout twice, the second time resumed, and compare with one process."""
    unknown = set(only) - {case.name for case in CASES}
    if unknown:
        names = ", ".join(case.name for case in CASES)
        raise click.UsageError(f"--only {unknown.pop()!r} is none of {names}")
    root = find_root(os.environ)
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="matrix-", dir=root) as folder:
        failed = _run_all([case for case in CASES if not only or case.name in only], Path(folder))
    if failed:
        raise click.ClickException(f"{failed} layouts fail")


def _run_all(cases: Sequence[Case], folder: Path) -> int:
    """Prints a line per case and returns the number of failed cases."""
    start = time.monotonic()
    references = {
        is_moe: run(reference, folder / reference.name)
        for is_moe, reference in ((False, DENSE_REFERENCE), (True, MOE_REFERENCE))
        if any((_MOE in case.flags) == is_moe for case in cases)
    }
    click.echo(f"{'':<25} {'':>5}  {'':<14}  {'':<10}  differs from one process")
    click.echo(f"{'layout':<25} ranks  held-out loss   resumed     loss     norm          time")
    failed = 0
    for case in cases:
        failed += not _passes(case, folder / case.name, references[_MOE in case.flags])
    click.echo(f"{len(cases) - failed} of {len(cases)} right, {time.monotonic() - start:.0f} s")
    return failed


def _passes(case: Case, folder: Path, reference: Run) -> bool:
    start = time.monotonic()
    try:
        full = run(case, folder / "full")
        resumed = run(case, folder / "resumed", resume_from=folder / "full")
    except FailedRunError as error:
        click.echo(f"{case.name:<25} {case.ranks:>5}  failed: {error}")
        return False
    wrong = list(violations(case, full, resumed, reference))
    click.echo(row(case, full, resumed, reference, time.monotonic() - start))
    for sentence in wrong:
        click.echo(f"    {sentence}")
    return not wrong


if __name__ == "__main__":
    matrix()
