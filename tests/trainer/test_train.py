import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from trainer_validation.tensors import read_all_tensors

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.layout.world import World
from lockstep_trainer.progress import Summary
from lockstep_trainer.train import train

TINY = TrainConfig(
    steps=6, batch=2, sequence=16, layers=2, width=16, heads=2, checkpoint_every=3, log_every=2
)


@pytest.fixture(autouse=True)
def _unmonitored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP", "off")


def test_a_resumed_run_ends_with_the_very_bits_of_an_uninterrupted_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full, resumed = tmp_path / "full", tmp_path / "resumed"
    first = train(dataclasses.replace(TINY, checkpoint_dir=full), World())
    shutil.copytree(full / "step-00000003", resumed / "step-00000003")
    second = train(dataclasses.replace(TINY, checkpoint_dir=resumed, resume=True), World())
    expected, state = (read_all_tensors(folder / "step-00000006") for folder in (full, resumed))
    assert expected.keys() == state.keys()
    assert all(torch.equal(expected[name], state[name]) for name in expected)
    assert (first.loss, first.resumed_from) == (second.loss, 0)
    assert second.resumed_from == 3
    assert "resuming from" in capsys.readouterr().err


def test_checkpoints_written_in_the_background_hold_the_same(tmp_path: Path) -> None:
    train(dataclasses.replace(TINY, checkpoint_dir=tmp_path / "a"), World())
    in_background = dataclasses.replace(TINY, checkpoint_dir=tmp_path / "b", checkpoint_async=True)
    train(in_background, World())
    for step in ("step-00000003", "step-00000006"):
        expected, state = (read_all_tensors(tmp_path / folder / step) for folder in "ab")
        assert all(torch.equal(expected[name], state[name]) for name in expected)


def test_a_run_without_remaining_steps_has_no_loss(tmp_path: Path) -> None:
    config = dataclasses.replace(TINY, checkpoint_dir=tmp_path)
    train(config, World())
    resumed = train(dataclasses.replace(config, resume=True), World())
    assert (resumed.resumed_from, resumed.loss, resumed.tokens_per_second) == (6, None, None)


def test_a_checkpoint_that_cannot_be_written_is_reported_and_training_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    summary = train(dataclasses.replace(TINY, checkpoint_dir=blocked), World())
    assert summary.loss is not None
    assert "checkpoint of step 3 could not be written" in capsys.readouterr().err


def test_recomputing_blocks_changes_nothing() -> None:
    recomputed = train(dataclasses.replace(TINY, recompute=True, experts=4), World())
    assert recomputed.losses == train(dataclasses.replace(TINY, experts=4), World()).losses


def test_a_run_reports_its_mfu(capsys: pytest.CaptureFixture[str]) -> None:
    summary = train(dataclasses.replace(TINY, peak_flops=1e12), World())
    speed = summary.tokens_per_second
    assert speed is not None
    assert summary.mfu_ratio is not None
    assert 0 < summary.mfu_ratio < 1
    assert " MFU " in capsys.readouterr().err


def test_a_loss_that_is_no_number_is_absent_from_the_summary(tmp_path: Path) -> None:
    summary = train(dataclasses.replace(TINY, fault=("nan-loss:rank=all,step=4",)), World())
    assert summary.loss is None
    summary.write(tmp_path / "summary.json")
    assert Summary(**json.loads((tmp_path / "summary.json").read_text())) == summary
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]
