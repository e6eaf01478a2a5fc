"""Programs run with lines that no file has, and show what these see."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lockstep.commands.instrument import instrument

LOOP = """
import torch
def train(model, optimizer):
    for i in range(99999):
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        optimizer.step()
"""
START = """
import sys, torch
from .loop import train
assert sys.argv[1:] == ["--lr", "3"] and __name__ == "__main__" and __package__ == "pack"
model = torch.nn.Linear(4, 4)
train(model, torch.optim.SGD(model.parameters(), lr=0.1))
"""
FILES = {"pack/__init__.py": "", "pack/loop.py": LOOP, "pack/start.py": START}
ALONE = LOOP + "model = torch.nn.Linear(4, 4)\ntrain(model, torch.optim.SGD(model.parameters()))\n"
ENDS = ALONE.replace("99999", "3") + "print('all is over')\n"
FAILS = ALONE.replace("99999", "(i for i in [][0])")


def dry_run(folder: Path, files: dict[str, str], *arguments: str) -> Result:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    result = CliRunner().invoke(instrument, [*arguments], standalone_mode=False)
    assert {name: (folder / name).read_text() for name in files} == files
    assert not [*folder.rglob("*.pyc")]
    return result


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("files", "arguments", "phrases"),
    [
        (
            FILES,
            ["pack/loop.py", "--", "-m", "pack.start", "--lr", "3"],
            ["   0      5  ", "told: loss in 5, 0 samples, 0 tokens", "no step tells tokens"],
        ),
        ({"train.py": ENDS}, ["train.py"], ["the program ended after 3 steps", "all is over"]),
        ({"train.py": FAILS}, ["train.py"], ["made no step", "IndexError"]),
    ],
)
def test_a_program_runs_with_the_lines_that_its_file_does_not_have(
    files: dict[str, str],
    arguments: list[str],
    phrases: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = dry_run(tmp_path, files, "--run", "5", *arguments)
    output = f"{result.stdout}{result.exception or ''}"
    assert [phrase for phrase in phrases if phrase not in output] == [], output


@pytest.mark.parametrize(
    ("text", "arguments", "phrase"),
    [
        (ALONE, ["train.py"], "is for --run"),
        (f"import torch.multiprocessing\n{ALONE}torch.multiprocessing.spawn(train)\n",
         ["--run", "2"], "it starts its ranks itself"),
    ],
)  # fmt: skip
def test_a_run_that_cannot_be_is_one_sentence(
    text: str, arguments: list[str], phrase: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    result = dry_run(tmp_path, {"train.py": text}, str(script), *arguments)
    assert phrase in str(result.exception)
