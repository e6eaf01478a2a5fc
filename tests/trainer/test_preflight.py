import sys
from pathlib import Path
from typing import Any

import click
import pytest

from lockstep_trainer.__main__ import main
from lockstep_trainer.checkpoints.checkpointer import facts_of
from lockstep_trainer.checkpoints.files import Facts, commit, folder_of, make_fresh
from lockstep_trainer.commands.train import train
from lockstep_trainer.config import TrainConfig
from lockstep_trainer.data.corpus import read_corpus, standard_library
from lockstep_trainer.layout.world import Layout, world_from
from lockstep_trainer.preflight import check_run


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            {"dp": 3},
            "x --dp 3 x --fsdp 1 x --ep 1 x --tp 1 makes 3 ranks and the world has 2; give",
        ),
        ({"tp": 2}, "--tp 2 does not fit --strategy ddp, which has dp; leave it out or"),
        ({"strategy": "tp", "heads": 1}, "--heads 1 cannot be split into --tp 2 equal parts; 2"),
        ({"strategy": "tp", "sequence": 127}, "--sequence 127 cannot be split into --tp 2 equal"),
        ({"strategy": "tp", "experts": 4}, "--experts 4 does not fit --strategy tp; take ddp"),
        ({"strategy": "ep"}, "--strategy ep needs --experts, a multiple of --ep, such as 8"),
        (
            {"strategy": "ep", "experts": 3},
            "--experts 3 cannot be split into --ep 2 equal parts; 2",
        ),
        ({"strategy": "pp", "layers": 1}, "make 2 stages of --layers 1; give --layers 2 or fewer"),
        ({"strategy": "pp", "schedule": "interleaved", "layers": 3}, "make 4 stages of --layers 3"),
        ({"strategy": "pp", "batch": 6}, "--batch 6 cannot be split into --micro-batches 4 equal"),
        ({"strategy": "pp", "micro_batches": 1}, "--schedule 1f1b needs as many --micro-batches"),
        (
            {"strategy": "pp", "schedule": "interleaved", "micro_batches": 3, "batch": 3},
            "--schedule interleaved needs --micro-batches in multiples of --pp 2",
        ),
        (
            {"fault": ("slow-backward:rank=2,step=1",)},
            "rank 2 is outside the world of 2 ranks; they run from 0 to 1",
        ),
        ({"strategy": "zero"}, "--strategy 'zero' is none of ddp"),
        ({"batch": 100_000}, "--batch 100000 and --sequence 128 on 2 ranks need more than"),
        ({"summary": Path("/no/such/folder/s.json")}, "--summary /no/such/folder/s.json must be"),
        ({"summary": Path("/proc/s.json")}, "--summary /proc cannot be written"),
        ({"checkpoint_dir": Path("/proc/c")}, "--checkpoint-dir /proc/c cannot be written"),
        ({"checkpoint_dir": Path(__file__)}, f"--checkpoint-dir {__file__} cannot be written"),
    ],
)
def test_an_impossible_run_is_refused_by_the_name_of_its_flag(
    wrong: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match="--") as refused:
        check_run(TrainConfig(**wrong), world_size=2)
    assert sentence in str(refused.value)


def test_a_check_leaves_nothing_behind(tmp_path: Path) -> None:
    config = TrainConfig(checkpoint_dir=tmp_path / "new", summary=tmp_path / "summary.json")
    check_run(config, world_size=2)
    assert list(tmp_path.iterdir()) == []


def put(root: Path, facts: Facts) -> None:
    make_fresh(folder_of(root, 1))
    commit(folder_of(root, 1), 1, {"state": ""}, facts)


def test_a_folder_of_other_files_is_not_resumed_from(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"is not a folder of checkpoints: it holds notes\.txt"):
        check_run(TrainConfig(checkpoint_dir=tmp_path, resume=True), world_size=1)


def test_a_run_without_resume_never_overwrites_checkpoints(tmp_path: Path) -> None:
    put(tmp_path, {})
    with pytest.raises(ValueError, match="holds checkpoints; add --resume"):
        check_run(TrainConfig(checkpoint_dir=tmp_path), world_size=1)


def test_a_checkpoint_of_another_model_is_refused_before_a_rank_starts(tmp_path: Path) -> None:
    config = TrainConfig(checkpoint_dir=tmp_path, resume=True, layers=2)
    sha256 = read_corpus(standard_library()).sha256
    put(tmp_path, facts_of(config, Layout(world_size=1), corpus_sha256=sha256))
    check_run(config, world_size=1)
    with pytest.raises(ValueError, match="was written with layers 2 and this run has 4"):
        check_run(TrainConfig(checkpoint_dir=tmp_path, resume=True), world_size=1)
    with pytest.raises(ValueError, match="was written with global_batch 4 and this run has 8"):
        check_run(config, world_size=2)


def test_the_launcher_refuses_before_it_starts_a_rank() -> None:
    arguments = ["--nproc-per-node", "2", "--dp", "4"]
    with pytest.raises(click.UsageError, match="makes 4 ranks and the world has 2"):
        train.main(arguments, standalone_mode=False)


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK 2 is outside WORLD_SIZE 2"),
        ({"RANK": "one"}, "RANK='one' is not a rank"),
        ({"RANK": "0", "ROLE_RANK": "1"}, "RANK=0 and ROLE_RANK=1 do not agree"),
        ({"ROLE_WORLD_SIZE": "2"}, "WORLD_SIZE=1 and ROLE_WORLD_SIZE=2 do not agree"),
    ],
)
def test_an_invalid_rank_is_named(environment: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        world_from(environment)


@pytest.mark.parametrize(("rank", "lines"), [("0", 1), ("1", 0)])
def test_only_rank_0_reports_wrong_flags(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: str, lines: int
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(sys, "argv", ["lockstep_trainer", "--dp", "3"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    output = capsys.readouterr()
    assert (output.out, len(output.err.splitlines())) == ("", lines)
