"""The real Hugging Face Trainer, Lightning and Accelerate, as the pages of their ranks say."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from lockstep_records.files.spans import Span, read_spans, spool_path
from lockstep_records.page.reader import Page, read_page, read_rows

STEPS, ACCUMULATE, BATCH, LENGTH, RATE = 20, 2, 4, 8, 0.05
FAILS_AT = 7  # micro-batch that raises
TOKENS_PER_SAMPLE = {"transformers": LENGTH, "lightning": 0, "accelerate": 0}
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def loops() -> ModuleType:
    from . import framework_loops  # noqa: PLC0415  # the frameworks load for seconds

    return framework_loops


def page_of(root: Path, job_id: str) -> Page:
    return read_page(root / "jobs" / job_id / "0" / "rank-00000.page")


@pytest.fixture(scope="module", params=TOKENS_PER_SAMPLE)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def page(
    name: str, loops: ModuleType, module_memory: Path, tmp_path_factory: pytest.TempPathFactory
) -> Page:
    getattr(loops, f"train_{name}")(module_memory, name, tmp_path_factory.mktemp("out"))
    return page_of(module_memory, name)


def spans(page: Page, name: str) -> list[Span]:
    return [span for span in read_spans(spool_path(page.path)) if span.name == name]


def test_a_step_is_an_optimizer_step_with_all_its_micro_batches(name: str, page: Page) -> None:
    samples = STEPS * BATCH * ACCUMULATE
    state = page.state
    assert (state["steps"], state["samples"], page.phase) == (STEPS, samples, "done")
    assert state["tokens"] == samples * TOKENS_PER_SAMPLE[name]
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
    name: str, loops: ModuleType, module_memory: Path, tmp_path: Path
) -> None:
    train = getattr(loops, f"train_{name}")
    with pytest.raises(RuntimeError, match="no more"):
        train(module_memory, f"{name}-fails", tmp_path, FAILS_AT)
    page = page_of(module_memory, f"{name}-fails")
    assert page.phase == "failed"
    assert page.state["steps"] == FAILS_AT // ACCUMULATE


def test_an_evaluation_that_fails_is_recorded_as_failed(
    loops: ModuleType, root: Path, tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError, match="in the evaluation"):
        loops.fit_lightning(root, "evaluation", tmp_path, loops.Line(evaluation_fails_at=1))
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
