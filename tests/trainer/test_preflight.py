import sys
from pathlib import Path
from typing import Any

import click
import pytest

from lockstep_trainer.__main__ import main
from lockstep_trainer.checkpoint import facts_of
from lockstep_trainer.checkpoint_files import commit
from lockstep_trainer.command import train
from lockstep_trainer.config import TrainConfig
from lockstep_trainer.data import read_corpus, standard_library
from lockstep_trainer.preflight import check_run
from lockstep_trainer.world import world_from


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"dp": 3}, "--dp 3 makes 3 ranks and the world has 2"),
        ({"slow_rank": 2}, "--slow-rank 2 is outside the world of 2 ranks; they run from 0 to 1"),
        ({"strategy": "zero"}, "--strategy 'zero' is none of ddp"),
        ({"batch": 100_000}, "--batch 100000 and --sequence 128 on 2 ranks need more than"),
        ({"summary": Path("/no/such/folder/s.json")}, "--summary /no/such/folder/s.json must be"),
        ({"summary": Path("/proc/s.json")}, "--summary /proc cannot be written"),
        ({"checkpoint_dir": Path("/proc/c")}, "--checkpoint-dir /proc/c cannot be written"),
        ({"checkpoint_dir": Path(__file__)}, f"--checkpoint-dir {__file__} cannot be written"),
    ],
)
def test_a_run_that_cannot_work_is_refused_by_the_name_of_its_flag(
    wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match="--") as refused:
        check_run(TrainConfig(**wrong), world_size=2)
    assert said in str(refused.value)


def test_a_check_leaves_nothing_behind(tmp_path: Path) -> None:
    config = TrainConfig(checkpoint_dir=tmp_path / "new", summary=tmp_path / "summary.json")
    check_run(config, world_size=2)
    assert list(tmp_path.iterdir()) == []


def test_checkpoints_are_never_overwritten_by_a_run_that_starts_afresh(tmp_path: Path) -> None:
    commit(tmp_path, 1, b"state", {})
    with pytest.raises(ValueError, match="holds checkpoints; add --resume"):
        check_run(TrainConfig(checkpoint_dir=tmp_path), world_size=1)


def test_a_checkpoint_of_another_model_is_refused_before_a_rank_starts(tmp_path: Path) -> None:
    config = TrainConfig(checkpoint_dir=tmp_path, resume=True, layers=2)
    sha256 = read_corpus(standard_library()).sha256
    commit(tmp_path, 1, b"state", facts_of(config, corpus_sha256=sha256, num_ranks=1))
    check_run(config, world_size=1)
    with pytest.raises(ValueError, match="was made with layers 2 and this run has 4"):
        check_run(TrainConfig(checkpoint_dir=tmp_path, resume=True), world_size=1)
    with pytest.raises(ValueError, match="was made with dp 1 and this run has 2"):
        check_run(config, world_size=2)


def test_the_launcher_refuses_before_it_starts_a_rank() -> None:
    arguments = ["--nproc-per-node", "2", "--dp", "4"]
    with pytest.raises(click.UsageError, match="--dp 4 makes 4 ranks and the world has 2"):
        train.main(arguments, standalone_mode=False)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK 2 is outside WORLD_SIZE 2"),
        ({"RANK": "one"}, "RANK='one' is no rank"),
    ],
)
def test_a_rank_that_cannot_be_is_named(environment: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        world_from(environment)


@pytest.mark.parametrize(("rank", "lines"), [("0", 1), ("1", 0)])
def test_of_the_ranks_with_wrong_flags_only_the_first_speaks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: str, lines: int
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(sys, "argv", ["lockstep_trainer", "--dp", "3"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert (said.out, len(said.err.splitlines())) == ("", lines)
