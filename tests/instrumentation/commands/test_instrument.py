"""Scripts of many kinds: proposed lines are applied by ``patch`` and run; others are refused."""

import ast
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from servers import captured, free_port

from lockstep.commands.instrument import ProposedLines, instrument
from lockstep.commands.training_script import TrainingScript
from lockstep_records.files.spans import read_spans, spool_path
from lockstep_records.page.reader import Page, read_page, read_rows

SCRIPTS = Path(__file__).parents[2] / "fixtures" / "training_scripts"
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.txt"))
JOB_ID = "job-a"


def propose(script: Path) -> Result:
    return CliRunner().invoke(instrument, [str(script)], standalone_mode=False)


def proposed(name: str) -> tuple[list[str], str]:
    """The lines that are added to a script of the fixtures, and what is said of it."""
    result = propose(SCRIPTS / f"{name}.txt")
    assert result.exception is None, result.exception
    lines = result.stdout.splitlines()
    return [
        line[1:].strip() for line in lines if line[:1] == "+" and line[:3] != "+++"
    ], result.stderr


def apply_lines(name: str, folder: Path) -> Path:
    """The script with the lines that were printed for it, applied by the program ``patch``."""
    script = folder / f"{name}.py"
    script.write_bytes((SCRIPTS / f"{name}.txt").read_bytes())
    difference = propose(script).stdout
    done = subprocess.run(
        ["patch", "--batch", script], input=difference, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return script


@dataclass(frozen=True)
class Run:
    """What the pages show of a script that ran; ``num_ranks`` are those that torchrun starts."""

    steps: int
    num_ranks: int = 0
    phases: tuple[str, ...] = ("forward", "backward", "optimizer")
    evaluations: int = 0
    checkpoints: int = 0
    world_size: int = 1


DDP = ("data", "forward", "backward", "sync", "optimizer")
RUNS = {
    "flat_accumulation": Run(13, 2, DDP, evaluations=3, checkpoints=2, world_size=2),
    "trainer_class": Run(12),
    "ddp_series": Run(18, 2, DDP, checkpoints=2, world_size=2),
    "ddp_spawn": Run(18, 0, DDP, checkpoints=2, world_size=2),
    "fsdp2": Run(12, 2, ("forward", "backward", "sync", "optimizer"), checkpoints=1, world_size=2),
    "imagenet_like": Run(18, 2, DDP, evaluations=3, checkpoints=3, world_size=2),
    "word_language_model": Run(
        24, phases=("data", "forward", "backward"), evaluations=3, checkpoints=3
    ),
    "gan": Run(16, phases=("data", "forward", "backward", "optimizer"), checkpoints=2),
    "compiled_amp": Run(12, phases=("data", "forward", "backward", "optimizer"), evaluations=2),
    "join_uneven": Run(8, 2, DDP, world_size=2),
    "notebook_export": Run(12, phases=("data", "forward", "backward", "optimizer"), evaluations=2),
    "functional_steps": Run(12, evaluations=2),
    "critics": Run(12, phases=("data", "forward", "backward", "optimizer")),
    "pipeline": Run(12, 2, ("forward", "backward", "optimizer"), world_size=2),
    "many_shapes": Run(12, phases=("data", "forward", "backward", "optimizer"), checkpoints=2),
    "two_dimensions": Run(10, 2, ("forward", "backward", "optimizer"), world_size=2),
    "hf_trainer": Run(12, evaluations=2, checkpoints=2),
    "lightning_trainer": Run(12, evaluations=2, checkpoints=2),
    "accelerate_script": Run(16, phases=("data", "forward", "backward", "optimizer")),
    "ray_train": Run(16, 0, DDP, checkpoints=2, world_size=2),
    "deepspeed_engine": Run(
        8, 2, ("data", "forward", "backward", "optimizer"), checkpoints=1, world_size=2
    ),
}
# One that evaluates and saves; `make test-release` runs the others.
FIRST = "word_language_model"
CELLS = [name if name == FIRST else pytest.param(name, marks=pytest.mark.release) for name in RUNS]
PACKAGE_OF = {"ray_train": "ray", "deepspeed_engine": "deepspeed"}


def run_script(script: Path, run: Run, root: Path) -> Page:
    out = script.parent / "out"
    out.mkdir()
    command = [sys.executable, str(script)]
    port = free_port()
    if run.num_ranks:
        torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(run.num_ranks)]
        command[1:] = [*torchrun, "--master-port", str(port), str(script)]
    inherited = {name: value for name, value in os.environ.items() if name != "RANK"}
    done = captured(
        command,
        env=inherited
        | {"LOCKSTEP_DIR": str(root), "LOCKSTEP_JOB_ID": JOB_ID, "OUT": str(out)}
        | {"OMP_NUM_THREADS": "1", "MASTER_PORT": str(port)},
        cwd=script.parent,
        timeout=220,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "training goes on" not in done.stderr, done.stderr
    return read_page(root / "jobs" / JOB_ID / "0" / "rank-00000.page")


@pytest.mark.distributed
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", CELLS)
def test_a_script_with_its_proposed_lines_shows_its_steps_and_phases(
    name: str, root: Path, tmp_path: Path
) -> None:
    if find_spec(PACKAGE_OF.get(name, "torch")) is None:
        pytest.skip(f"{PACKAGE_OF[name]} is not installed")
    run = RUNS[name]
    page = run_script(apply_lines(name, tmp_path), run, root)
    assert (page.phase, page.state["steps"]) == ("done", run.steps)
    assert page.identity["world_size"] == run.world_size
    assert page.state["internal_errors"] == 0
    for row in read_rows(page)[1:]:
        assert [phase for phase in run.phases if not row["phase_seconds"][phase] > 0] == []
    spans = [span.name for span in read_spans(spool_path(page.path))]
    assert spans.count("evaluation") == run.evaluations
    assert page.state["checkpoints"] == {"ok": run.checkpoints, "failed": 0}


LINES = {
    "imagenet_like": [
        "import lockstep",
        "global monitor",
        "monitor = lockstep.attach(model, optimizer)",
    ],
    "trainer_class": ["batch = next(monitor.prepare(data_iter))"],
    "ddp_series": ["self.monitor = lockstep.attach(self.model, self.optimizer)"],
    "gan": ["monitor = lockstep.attach([netD, netG], [optimizerD, optimizerG])"],
    "fsdp2": ["monitor = lockstep.attach(model, optim, mesh=mesh)"],
    "pipeline": ["monitor = lockstep.attach(block, optimizer, schedule=schedule)"],
    "many_shapes": ["monitor.step(loss=loss, samples=len(batch))"],
    "two_dimensions": ["monitor = lockstep.attach(sharded_model, optimizer, mesh=device_mesh)"],
    "hf_trainer": ["trainer.add_callback(LockstepCallback(trainer))"],
    "lightning_trainer": ["trainer.callbacks.append(LockstepCallback())"],
    "accelerate_script": ["if accelerator.sync_gradients: monitor.step(loss=loss)"],
    "deepspeed_engine": ["monitor = lockstep.attach(model_engine, model_engine.optimizer)"],
    "parameter_server": ["monitor = lockstep.attach()", "monitor.step(loss=loss)"],
    "local_sgd_ft": ["monitor = lockstep.attach(m, optimizer)", "monitor.step(loss=loss)"],
}
NOTES = {
    "parameter_server": "other processes do the work",
    "ddp_spawn": "start it as before",
    "ddp_series": "start it by lockstep run --nproc-per-node",
    "lightning_trainer": "the loop is inside lightning",
    "gan": "checkpoints by torch.save, safetensors, pickle and DCP need no line",
}
REFUSALS = {
    "one_line": "line 3 begins a block and holds what is in it",
    "loop_elsewhere": "no loop in it steps an optimizer",
    "torchtitan_entry": "it is inside torchtitan: docs/examples/",
    "megatron_pretrain": "it is inside megatron: docs/examples/",
    "old_lightning": "it is inside pytorch_lightning: import lightning.pytorch",
}


@pytest.mark.parametrize("name", LINES)
def test_each_kind_of_script_gets_the_lines_of_its_kind(name: str) -> None:
    lines, _ = proposed(name)
    assert [line for line in LINES[name] if line not in lines] == []


@pytest.mark.parametrize("name", NOTES)
def test_what_cannot_be_seen_is_said(name: str) -> None:
    assert NOTES[name] in proposed(name)[1]


@pytest.mark.parametrize("name", REFUSALS)
def test_a_script_without_a_loop_that_can_be_edited_is_refused_with_a_remedy(name: str) -> None:
    result = propose(SCRIPTS / f"{name}.txt")
    assert REFUSALS[name] in str(result.exception)
    assert result.stdout == ""


@pytest.mark.parametrize("name", sorted({*NAMES} - {*REFUSALS}))
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_script_with_its_lines_is_a_script(name: str, end: str, tmp_path: Path) -> None:
    text = (SCRIPTS / f"{name}.txt").read_text(encoding="utf-8")
    script = tmp_path / "script.py"
    script.write_bytes(text.replace("\n", end).encode())
    edited = "\n".join(ProposedLines(TrainingScript(script)).apply())
    ast.parse(edited)
    assert edited.count("\r") in {0, edited.count("\n")}


@pytest.mark.parametrize(
    ("content", "phrase"),
    [
        (b"", "it has no statement"),
        (b"# only a comment\n", "it has no statement"),
        (b"for x in loader\n    pass\n", "line 1: expected ':'"),
        (b"x = \x00\n", "cannot read it"),
        (b"\xff\xfe\x00", "cannot read it"),
        (b"(" * 5000, "cannot read it"),
        (b"x = 1\n" * 300_000, "it is longer than 1048576 bytes"),
        (b"class A(B): pass\nclass B(A): pass\nx = A()\n", "no loop in it"),
        (b"x = " + b"a." * 3000 + b"b()\n", ""),
    ],
)
def test_a_file_that_is_no_training_script_is_one_sentence(
    content: bytes, phrase: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_bytes(content)
    error = propose(script).exception
    assert isinstance(error, click.UsageError)
    assert phrase in error.message
    assert str(script) in error.message
    assert "\n" not in error.message


@pytest.mark.parametrize("name", ["missing.py", "."])
def test_what_is_no_file_is_refused(name: str, tmp_path: Path) -> None:
    error = propose(tmp_path / name).exception
    assert isinstance(error, click.UsageError)
    assert error.exit_code == 2


def test_a_notebook_is_refused_with_the_command_that_exports_it(tmp_path: Path) -> None:
    notebook = tmp_path / "train.ipynb"
    notebook.write_text("{}")
    assert "jupyter nbconvert" in str(propose(notebook).exception)


def test_a_file_with_the_loop_beside_the_script_is_named(tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_bytes((SCRIPTS / "loop_elsewhere.txt").read_bytes())
    (tmp_path / "my_trainer.py").write_text("loss.backward()")
    assert re.search(
        "give the file with the loop, perhaps .*my_trainer.py", str(propose(script).exception)
    )


def test_a_script_that_attaches_already_gets_no_line(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import lockstep\nmonitor = lockstep.attach()\n")
    result = propose(script)
    assert (result.stdout, result.exit_code) == ("", 0)
    assert "attaches already" in result.stderr


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.release)])
def test_python_files_of_the_project_are_read_or_refused(every: int) -> None:
    folders = ("docs/examples", "trainer", "bench", "instrumentation")
    files = [p for f in folders for p in (SCRIPTS.parents[2] / f).rglob("*.py")]
    assert len(files) > 100
    errors = [propose(path).exception for path in sorted(files)[::every]]
    assert {type(error) for error in errors} <= {click.UsageError, type(None)}


def test_imports_and_accumulation_are_followed_and_what_is_open_is_asked(tmp_path: Path) -> None:
    (tmp_path / "checks.py").write_text(
        "import torch\ndef measure(model):\n    with torch.no_grad():\n        return model(1)\n"
    )
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nfrom checks import measure\nmodel = torch.nn.Linear(4, 4)\n"
        "optimizer = torch.optim.SGD(model.parameters())\nfor batch in loader:\n"
        "    loss = model(batch).sum() / accumulation_steps\n    loss.backward()\n"
        "    if ready:\n        optimizer.step()\n    measure(model)\n"
    )
    result = propose(script)
    assert "+        monitor.step(loss=loss * accumulation_steps)" in result.stdout.splitlines()
    assert '+    with monitor.phase("eval"):' in result.stdout.splitlines()


BODIES = (SCRIPTS.parent / "training_bodies.txt").read_text(encoding="utf-8").split("\n\n## ")


@pytest.mark.parametrize("body", BODIES, ids=[body.partition("\n")[0] for body in BODIES])
def test_loops_of_many_kinds_get_the_line(body: str, tmp_path: Path) -> None:
    lines = [line for line in body.split("\n") if line.startswith("##  ")]
    script = tmp_path / "train.py"
    script.write_text(body.partition("\n")[2], encoding="utf-8")
    result = propose(script)
    assert result.exception is None, result.exception
    missing = {f"+{line[3:]}" for line in lines} - {*result.stdout.splitlines()}
    assert lines
    assert not missing, result.stdout
    ast.parse("\n".join(ProposedLines(TrainingScript(script)).apply()))
