"""docs/loops.md: the lines are those that the command prints, and their steps have the phases."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from lockstep.commands.instrument import ProposedLines
from lockstep.commands.training_script import TrainingScript
from lockstep_records.page.reader import read_page, read_rows

PAGE = Path(__file__).parents[3] / "docs" / "loops.md"
SHAPE = re.compile(r"^## (.*?)\n.*?```diff\n(.*?)```\n\n`(.*?)`$", re.DOTALL | re.MULTILINE)
SHAPES = [*SHAPE.finditer(PAGE.read_text(encoding="utf-8"))]
STEPS = 4


def lines_of(block: str, sign: str) -> list[str]:
    return [line[1:] for line in block.splitlines() if line[:1] in {" ", sign}]


def names_of(loader: list[torch.Tensor]) -> dict[str, Any]:
    models = [torch.nn.Linear(4, 4) for _ in range(3)]
    batches: Any = iter(loader)
    return {
        "torch": torch,
        "dist": SimpleNamespace(**dict.fromkeys(("all_reduce", "send", "recv"), lambda *_: None)),
        "accelerator": Accelerator(cpu=True, gradient_accumulation_steps=2),
        **dict(zip(("model", "critic", "generator"), models, strict=True)),
        **dict.fromkeys(("rank", "previous", "following"), 0),
        **dict.fromkeys(("activations", "gradients"), loader[0]),
        "loader": loader,
        "accumulate": 2,
        "get_batch": lambda: next(batches),
        "has_more": lambda: batches.__length_hint__() > 0,
    }


@pytest.mark.parametrize("shape", SHAPES, ids=[shape[1] for shape in SHAPES])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_shape_has_its_lines_and_its_steps_have_their_phases(
    shape: re.Match[str], root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n" + "\n".join(lines_of(shape[2], "-")))
    proposed = ProposedLines(TrainingScript(script)).apply()
    assert [line for line in proposed[2:] if line != "monitor.close()"] == lines_of(shape[2], "+")
    monkeypatch.setenv("LOCKSTEP_DIR", str(root))
    monkeypatch.setenv("LOCKSTEP_JOB_ID", "job-a")
    names = names_of([torch.ones(2, 4) for _ in range(STEPS)])
    exec(compile("\n".join(proposed), str(script), "exec"), names)  # noqa: S102  # the page is ours
    if "train_epoch" in names:
        names["train_epoch"](names["model"], torch.optim.SGD(names["model"].parameters()),
                             names["loader"])  # fmt: skip
    names["lockstep"].attach(names["model"]).close()
    page = read_page(root / "jobs" / "job-a" / "0" / "rank-00000.page")
    assert page.state["internal_errors"] == 0
    seen = {n for row in read_rows(page) for n, seconds in row["phase_seconds"].items() if seconds}
    assert seen - {"other", "sync"} == {*shape[3].split()} - {"sync"}


def test_there_are_twelve_shapes() -> None:
    assert len(SHAPES) == 12
