"""The real Hugging Face Trainer, Lightning and Accelerate, as the pages of their ranks say."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from lightning.pytorch import LightningModule
from lightning.pytorch import Trainer as LightningTrainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import lockstep
from lockstep.integrations.lightning import LockstepCallback as LightningCallback
from lockstep.integrations.transformers import LockstepCallback as TransformersCallback
from lockstep_records.files.spans import Span, read_spans, spool_path
from lockstep_records.page.reader import Page, read_page, read_rows

STEPS, ACCUMULATE, BATCH, LENGTH, RATE = 20, 2, 4, 8, 0.05
FAILS_AT, NEVER = 7, -1  # micro-batch that raises
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def options_of(root: Path, job_id: str) -> dict[str, Any]:
    return {"root": root, "environment": {"LOCKSTEP_JOB_ID": job_id}, "rows": 64}


def points() -> DataLoader[Any]:
    x = torch.randn(STEPS * ACCUMULATE * BATCH, 4, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=BATCH)


class Texts(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, fails_at: int = NEVER) -> None:
        self.fails_at = fails_at * BATCH

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if index >= len(self):
            raise IndexError(index)
        if index == self.fails_at:
            raise RuntimeError("no more")
        ids = torch.arange(index, index + LENGTH) % 32
        return {"input_ids": ids, "labels": ids}


class InOrder(Trainer):
    """Takes the samples in their order, so that a known batch raises."""

    def _get_train_sampler(self, *_: Any) -> torch.utils.data.Sampler[Any]:
        return torch.utils.data.SequentialSampler(Texts())


def train_transformers(root: Path, job_id: str, out: Path, fails_at: int = NEVER) -> None:
    size: dict[str, Any] = {
        "vocab_size": 32,
        "n_positions": LENGTH,
        "n_embd": 16,
        "n_layer": 1,
        "n_head": 2,
    }
    arguments = TrainingArguments(
        output_dir=str(out),
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=8,
        gradient_accumulation_steps=ACCUMULATE,
        eval_strategy="steps",
        eval_steps=10,
        save_strategy="steps",
        save_steps=10,
        logging_steps=5,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = InOrder(
        GPT2LMHeadModel(GPT2Config(**size)),
        arguments,
        train_dataset=Texts(fails_at),
        eval_dataset=Subset(Texts(), range(8)),
    )
    trainer.add_callback(TransformersCallback(trainer, **options_of(root, job_id)))
    trainer.train()


class Line(LightningModule):
    """A line through points; it may raise in a given batch of the training or the evaluation."""

    def __init__(self, fails_at: int = NEVER, evaluation_fails_at: int = NEVER) -> None:
        super().__init__()
        self.line = torch.nn.Linear(4, 1)
        self.fails_at, self.evaluation_fails_at = fails_at, evaluation_fails_at

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if batch_idx == self.fails_at:
            raise RuntimeError("no more")
        x, y = batch
        return torch.nn.functional.mse_loss(self.line(x), y)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if batch_idx == self.evaluation_fails_at:
            raise RuntimeError("no more in the evaluation either")
        self.line(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=RATE)


def fit_lightning(root: Path, job_id: str, out: Path, model: Line) -> None:
    checkpoint = ModelCheckpoint(dirpath=out, every_n_train_steps=10, save_top_k=-1)
    LightningTrainer(
        callbacks=[LightningCallback(**options_of(root, job_id)), checkpoint],
        accelerator="cpu",
        devices=1,
        max_steps=STEPS,
        accumulate_grad_batches=ACCUMULATE,
        val_check_interval=20,
        limit_val_batches=2,
        num_sanity_val_steps=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(model, points(), points())


def train_lightning(root: Path, job_id: str, out: Path, fails_at: int = NEVER) -> None:
    fit_lightning(root, job_id, out, Line(fails_at))


def train_accelerate(root: Path, job_id: str, out: Path, fails_at: int = NEVER) -> None:
    """A loop as people write it, over two micro-batches a step."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
    line = torch.nn.Linear(4, 1)
    model, optimizer, loader = accelerator.prepare(
        line, torch.optim.SGD(line.parameters(), lr=RATE), points()
    )
    monitor = lockstep.attach(model, optimizer, **options_of(root, job_id))
    with closed_at_end(monitor):
        for number, (inputs, targets) in enumerate(monitor.prepare(loader)):
            fail_at(number, fails_at)
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                monitor.step(loss=loss, learning_rate=RATE)
            if number in {19, 39}:
                accelerator.save_state(str(out))
                with monitor.phase("eval"), torch.no_grad():
                    model(inputs)


@contextmanager
def closed_at_end(monitor: lockstep.Monitor) -> Iterator[None]:
    """Closes it as an exit of the process does."""
    try:
        yield
    except RuntimeError:
        monitor.close(failed=True)
        raise
    monitor.close()


def fail_at(number: int, fails_at: int) -> None:
    if number == fails_at:
        raise RuntimeError("no more")


@dataclass(frozen=True)
class Framework:
    """A framework, and what its loop passes on of tokens."""

    train: Callable[..., None]
    tokens_per_sample: int = 0


FRAMEWORKS = {
    "transformers": Framework(train_transformers, tokens_per_sample=LENGTH),
    "lightning": Framework(train_lightning),
    "accelerate": Framework(train_accelerate),
}


def page_of(root: Path, job_id: str) -> Page:
    return read_page(root / "jobs" / job_id / "0" / "rank-00000.page")


@pytest.fixture(scope="module", params=FRAMEWORKS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def page(name: str, module_memory: Path, tmp_path_factory: pytest.TempPathFactory) -> Page:
    FRAMEWORKS[name].train(module_memory, name, tmp_path_factory.mktemp("out"))
    return page_of(module_memory, name)


def spans(page: Page, name: str) -> list[Span]:
    return [span for span in read_spans(spool_path(page.path)) if span.name == name]


def test_a_step_is_an_optimizer_step_with_all_its_micro_batches(name: str, page: Page) -> None:
    samples = STEPS * BATCH * ACCUMULATE
    state = page.state
    assert (state["steps"], state["samples"], page.phase) == (STEPS, samples, "done")
    assert state["tokens"] == samples * FRAMEWORKS[name].tokens_per_sample
    # The loop counts from 1 or, where it leaves the count to the monitor, from 0.
    assert state["step"] == (STEPS - 1 if name == "accelerate" else STEPS)


def test_every_phase_has_its_time_in_every_step(page: Page) -> None:
    rows = read_rows(page)
    assert len(rows) == STEPS
    for row in rows:
        for phase in ("data", "forward", "backward", "optimizer"):
            assert row["phase_seconds"][phase] > 0, phase


def test_loss_and_learning_rate_are_those_of_the_step(page: Page) -> None:
    losses = [row["loss"] for row in read_rows(page)]
    assert None not in losses
    assert 0 < losses[-1] < losses[0] < 20
    assert page.state["learning_rate"] == RATE


def test_evaluations_and_saves_have_their_time_and_are_counted(name: str, page: Page) -> None:
    assert page.state["checkpoints"] == {"ok": 2, "failed": 0}
    assert page.state["phase_seconds"]["eval"] > 0
    assert page.state["phase_seconds"]["checkpoint"] > 0
    assert len(spans(page, "evaluation")) == 2
    if name == "transformers":
        assert [span.attributes["step"] for span in spans(page, "evaluation")] == [10, 20]
    if name != "accelerate":
        assert len(spans(page, "checkpoint")) == 2
        assert page.state["checkpoint_step"] == STEPS


def test_training_that_fails_is_recorded_as_failed(
    name: str, module_memory: Path, tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError, match="no more"):
        FRAMEWORKS[name].train(module_memory, f"{name}-fails", tmp_path, FAILS_AT)
    page = page_of(module_memory, f"{name}-fails")
    assert page.phase == "failed"
    assert page.state["steps"] == FAILS_AT // ACCUMULATE


def test_an_evaluation_that_fails_is_recorded_as_failed(root: Path, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="in the evaluation"):
        fit_lightning(root, "evaluation", tmp_path, Line(evaluation_fails_at=1))
    page = page_of(root, "evaluation")
    assert page.phase == "failed"
    assert page.state["phase_seconds"]["eval"] > 0


@pytest.mark.distributed
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
