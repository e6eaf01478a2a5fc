"""A loop over a real Accelerator: its steps, phases, checkpoints and failures in the page."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

from lockstep.integrations.accelerate import watched
from lockstep_records.page.reader import Page, read_page, read_rows
from lockstep_records.spans import read_spans, spool_path

STEPS, ACCUMULATE, BATCH = 20, 2, 4


@pytest.fixture(name="root", scope="module")
def _root() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="lockstep-test-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def train(root: Path, job_id: str, out: Path, breaks_at: int | None = None) -> Page:
    """A loop as people write it, over two micro-batches a step."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
    x = torch.randn(STEPS * ACCUMULATE * BATCH, 4, generator=torch.Generator().manual_seed(1))
    line = torch.nn.Linear(4, 1)
    model, optimizer, loader = accelerator.prepare(
        line,
        torch.optim.SGD(line.parameters(), lr=0.05),
        DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=BATCH),
    )
    options = {"root": root, "environment": {"LOCKSTEP_JOB_ID": job_id}, "rows": 64}
    with watched(accelerator, model, optimizer, **options) as watch:
        for number, (inputs, targets) in enumerate(watch.batches(loader)):
            if number == breaks_at:
                raise RuntimeError("no more")
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if number == 19:
                accelerator.save_state(str(out))
                with watch.monitor.phase("eval"), torch.no_grad():
                    model(inputs)
        accelerator.load_state(str(out))
    return page_of(root, job_id)


def page_of(root: Path, job_id: str) -> Page:
    return read_page(root / "jobs" / job_id / "0" / "rank-00000.page")


@pytest.fixture(name="page", scope="module")
def _page(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Page:
    return train(root, "job-a", tmp_path_factory.mktemp("out"))


def test_a_step_is_an_optimizer_step_with_all_its_micro_batches(page: Page) -> None:
    assert page.state["steps"] == STEPS
    assert page.state["samples"] == STEPS * ACCUMULATE * BATCH
    assert page.phase == "done"


def test_every_phase_has_its_time_in_every_step(page: Page) -> None:
    for row in read_rows(page):
        for phase in ("data", "forward", "backward", "optimizer"):
            assert row[f"{phase}_seconds"] > 0, phase


def test_loss_and_learning_rate_are_those_of_the_step(page: Page) -> None:
    losses = [row["loss"] for row in read_rows(page)]
    assert None not in losses
    assert 0 < losses[-1] < losses[0] < 20
    assert page.state["learning_rate"] == 0.05


def test_saves_restores_and_evaluations_are_counted(page: Page) -> None:
    assert page.state["checkpoints"]["ok"] == 1
    names = [span.name for span in read_spans(spool_path(page.path))]
    assert [name for name in names if name != "slow_step"] == [
        "initialisation",
        "checkpoint",
        "evaluation",
        "restore",
    ]


def test_a_loop_that_marks_nothing_has_its_waits_and_its_evaluation(root: Path) -> None:
    accelerator = Accelerator(cpu=True)
    line = torch.nn.Linear(4, 1)
    data = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
    model, optimizer, loader, held_out = accelerator.prepare(
        line, torch.optim.SGD(line.parameters(), lr=0.05), data, data
    )
    options = {"root": root, "environment": {"LOCKSTEP_JOB_ID": "job-c"}, "rows": 64}
    with watched(accelerator, model, optimizer, **options):
        for (inputs,) in loader:
            accelerator.backward(model(inputs).sum())
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for (inputs,) in held_out:
                model(inputs)
        model.train()
        accelerator.backward(model(inputs).sum())
        optimizer.step()
    *training, last = read_rows(page_of(root, "job-c"))
    assert len(training) == 4
    for row in training:
        assert row["data_seconds"] > 0
        assert row["eval_seconds"] == 0
    assert last["eval_seconds"] > 0
    assert last["forward_seconds"] > 0


def test_a_loop_that_fails_is_recorded_as_failed_and_the_accelerator_is_restored(
    root: Path, tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError, match="no more"):
        train(root, "job-b", tmp_path, breaks_at=7)
    page = page_of(root, "job-b")
    assert page.phase == "failed"
    assert page.state["steps"] == 3


@pytest.mark.parametrize("library", ["transformers", "lightning"])
def test_a_missing_library_is_one_sentence_with_its_extra(library: str) -> None:
    program = (
        f"import sys\nsys.modules[{library!r}] = None\n"
        f"try:\n    import lockstep.integrations.{library}\n"
        "except ModuleNotFoundError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50
    )
    assert done.stdout.strip().endswith(f"run pip install '.[{library}]' in the checkout")
    assert len(done.stdout.splitlines()) == 1
