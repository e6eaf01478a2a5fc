import dataclasses
import inspect
import json
import shutil
from pathlib import Path

import pytest
import torch

from lockstep_trainer import train as loop
from lockstep_trainer.checkpoints.checkpoint import CheckpointError, Checkpoints
from lockstep_trainer.checkpoints.shards import read_whole
from lockstep_trainer.config import TrainConfig
from lockstep_trainer.model import GPT
from lockstep_trainer.optimizer import adamw
from lockstep_trainer.parallel.shared import WholeModel
from lockstep_trainer.progress import Summary
from lockstep_trainer.train import train
from lockstep_trainer.world import World, joined

TINY = TrainConfig(
    steps=6, batch=2, sequence=16, layers=2, width=16, heads=2, checkpoint_every=3, log_every=2
)


@pytest.fixture(autouse=True)
def _unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP", "off")


def test_the_loop_file_is_short_and_six_of_its_lines_are_ours() -> None:
    lines = inspect.getsource(loop).splitlines()
    ours = [line for line in lines if "monitor" in line or line == "import lockstep"]
    only_ours = [line for line in ours if not line.lstrip().startswith("for ")]
    assert len(lines) < 150
    assert len(only_ours) <= 6


def test_a_resumed_run_ends_with_the_very_bits_of_an_uninterrupted_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    first = train(dataclasses.replace(TINY, checkpoint_dir=whole), World())
    shutil.copytree(whole / "step-00000003", resumed / "step-00000003")
    second = train(dataclasses.replace(TINY, checkpoint_dir=resumed, resume=True), World())
    one, other = (read_whole(folder / "step-00000006") for folder in (whole, resumed))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert (first.loss, first.resumed_from) == (second.loss, 0)
    assert second.resumed_from == 3
    assert "resuming from" in capsys.readouterr().err


def test_checkpoints_written_in_the_background_hold_the_same(tmp_path: Path) -> None:
    train(dataclasses.replace(TINY, checkpoint_dir=tmp_path / "a"), World())
    later = dataclasses.replace(TINY, checkpoint_dir=tmp_path / "b", checkpoint_async=True)
    train(later, World())
    for step in ("step-00000003", "step-00000006"):
        one, other = (read_whole(tmp_path / folder / step) for folder in "ab")
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_run_with_nothing_left_to_do_knows_no_loss(tmp_path: Path) -> None:
    config = dataclasses.replace(TINY, checkpoint_dir=tmp_path)
    train(config, World())
    again = train(dataclasses.replace(config, resume=True), World())
    assert (again.resumed_from, again.loss, again.tokens_per_second) == (6, None, None)


def test_a_job_that_is_started_again_resumes_by_itself(tmp_path: Path) -> None:
    config = dataclasses.replace(TINY, checkpoint_dir=tmp_path)
    train(config, World())
    shutil.rmtree(tmp_path / "step-00000006")
    assert train(config, World(attempt=1)).resumed_from == 3


def test_a_checkpoint_that_cannot_be_written_is_told_and_training_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    summary = train(dataclasses.replace(TINY, checkpoint_dir=blocked), World())
    assert summary.loss is not None
    assert "checkpoint of step 3 could not be written" in capsys.readouterr().err


def test_a_failed_save_raises_so_that_the_monitor_counts_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    config = dataclasses.replace(TINY, checkpoint_dir=tmp_path / "file")
    model = GPT(layers=1, width=16, heads=2, sequence=16)
    with joined(World(), timeout_seconds=5, threads=1) as world:
        checkpoints = Checkpoints(config, {}, world, print)
        checkpoints.save(1, WholeModel(model, config), adamw(model.parameters()))
        (save,) = checkpoints.ended()
        with pytest.raises(CheckpointError, match=r"step 1 could not be written: rank 0: .*file"):
            save.check()


def test_batches_added_up_are_one_large_batch(tmp_path: Path) -> None:
    whole = dataclasses.replace(TINY, batch=4, checkpoint_dir=tmp_path / "whole")
    cut = dataclasses.replace(TINY, batch=1, accumulate=4, checkpoint_dir=tmp_path / "cut")
    one, other = train(whole, World()), train(cut, World())
    assert (one.global_batch, other.global_batch) == (4, 4)
    assert one.loss == pytest.approx(other.loss, abs=1e-5)


def test_recomputing_blocks_changes_nothing() -> None:
    again = train(dataclasses.replace(TINY, recompute=True, experts=4), World())
    assert again.losses == train(dataclasses.replace(TINY, experts=4), World()).losses


def test_a_run_tells_what_share_of_the_peak_it_used(capsys: pytest.CaptureFixture[str]) -> None:
    summary = train(dataclasses.replace(TINY, peak_flops=1e12), World())
    speed = summary.tokens_per_second
    assert speed is not None
    assert summary.mfu_ratio is not None
    assert 0 < summary.mfu_ratio < 1
    assert " MFU " in capsys.readouterr().err


def test_a_loss_that_is_no_number_is_absent_from_the_summary(tmp_path: Path) -> None:
    summary = train(dataclasses.replace(TINY, nan_at=4), World())
    assert summary.loss is None
    summary.write(tmp_path / "summary.json")
    assert Summary(**json.loads((tmp_path / "summary.json").read_text())) == summary
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]
