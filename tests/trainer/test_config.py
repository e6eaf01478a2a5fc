import dataclasses
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from lockstep_records.page.replicas import counts_data
from lockstep_trainer.__main__ import main
from lockstep_trainer.checkpoints.checkpointer import facts_of
from lockstep_trainer.checkpoints.files import Facts, commit, folder_of, make_fresh
from lockstep_trainer.commands.train import train
from lockstep_trainer.config import TrainConfig, flag_name, trainer_flags
from lockstep_trainer.data.shards import read_corpus, standard_library
from lockstep_trainer.layout.world import Layout, world_from
from lockstep_trainer.parallel import STRATEGIES, layout_of
from lockstep_trainer.preflight import check_run


def parse(arguments: list[str]) -> TrainConfig:
    @click.command()
    @trainer_flags
    def command(**flags: Any) -> TrainConfig:
        return TrainConfig(**flags)

    parsed = command.main(arguments, standalone_mode=False)
    assert isinstance(parsed, TrainConfig)
    return parsed


def test_a_config_becomes_flags_and_the_flags_the_config_again() -> None:
    config = TrainConfig(
        steps=7, learning_rate=0.5, checkpoint_dir=Path("some where"), resume=True, timeout=90.0
    )
    assert "--timeout 90s" in " ".join(config.as_arguments())
    assert parse(config.as_arguments()) == config
    assert parse([]) == TrainConfig()
    assert TrainConfig().as_arguments() == []


def test_every_field_is_a_flag_with_help() -> None:
    @click.command()
    @trainer_flags
    def command(**_: Any) -> None: ...

    helped = {flag: o for o in command.params if isinstance(o, click.Option) for flag in o.opts}
    for field in dataclasses.fields(TrainConfig):
        assert (helped[flag_name(field)].help or "").endswith(".")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--steps", "0"], "--steps"),
        (["--batch", "-1"], "--batch"),
        (["--learning-rate", "0"], "--learning-rate"),
        (["--schedule", "zigzag"], "--schedule"),
        (["--timeout", "0s"], "--timeout"),
        (["--timeout", "60"], "--timeout"),
    ],
)
def test_a_value_out_of_range_is_refused_by_the_name_of_its_flag(
    arguments: list[str], sentence: str
) -> None:
    with pytest.raises(click.UsageError) as refused:
        parse(arguments)
    assert sentence in refused.value.format_message()


def test_a_periodic_action_is_due_after_the_last_step_too() -> None:
    config = TrainConfig(steps=25)
    assert [step for step in range(1, 26) if config.due(step, 10)] == [10, 20, 25]
    assert [step for step in range(1, 26) if config.due(step, 0)] == [25]


def test_a_file_gives_the_values_that_flags_leave_out(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        'strategy = "fsdp2"\nlearning_rate = 1e-2\nresume = true\ncheckpoint_dir = "c"\n'
        'fault = ["kill:rank=0,step=3"]\nsteps = 9\n'
    )
    config = parse(["--config", str(file), "--steps", "7"])
    assert (config.strategy, config.learning_rate, config.steps) == ("fsdp2", 1e-2, 7)
    assert config.resume
    assert config.checkpoint_dir == Path("c")
    assert config.fault == ("kill:rank=0,step=3",)
    assert parse(config.as_arguments()) == config


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("learning_rat = 1", "unknown key 'learning_rat'; did you mean learning_rate?"),
        ("zzz = 1", "unknown key 'zzz'; its keys are the options of --help"),
        ("steps = 'many'", "steps is 'many'; give a whole number"),
        ("steps = 0", "0 is not in the range"),
        ("[steps]\nx = 1", "steps is {'x': 1}; give a whole number"),
        ("learning_rate = 'high'", "learning_rate is 'high'; give a number"),
        ("steps =", "the text is not TOML"),
        ("timeout = 60", "timeout is 60; write a whole number and ms, s, m, h or d"),
    ],
)
def test_an_invalid_file_is_refused_with_its_key(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text)
    with pytest.raises(click.UsageError) as refused:
        parse(["--config", str(file)])
    assert sentence in refused.value.format_message()


def test_a_layout_that_does_not_multiply_to_the_world_prints_every_degree_and_the_remedy() -> None:
    with pytest.raises(ValueError, match="world") as refused:
        Layout(world_size=8, dp=2, tp=2)
    assert str(refused.value) == (
        "--pp 1 x --dp 2 x --fsdp 1 x --ep 1 x --tp 2 makes 4 ranks and the world has 8; "
        "give --dp 4 or start 4 ranks"
    )
    with pytest.raises(ValueError, match="; start 9 ranks"):
        Layout(world_size=8, dp=3, tp=3)


def test_the_axis_of_a_strategy_takes_what_the_others_leave() -> None:
    for name, strategy in STRATEGIES.items():
        assert layout_of(TrainConfig(strategy=name), 4).axes == {strategy.axes[0]: 4}
    halved = layout_of(TrainConfig(strategy="fsdp2", dp=2), 4)
    assert halved.axes == {"dp": 2, "fsdp": 2}
    hybrid = layout_of(TrainConfig(strategy="hybrid", pp=2, tp=2), 8)
    assert hybrid.axes == {"pp": 2, "dp": 2, "tp": 2}


@pytest.mark.parametrize("degrees", [(1, 4, 1), (2, 2, 1), (2, 1, 2), (1, 2, 2), (2, 2, 2)])
def test_each_part_of_the_data_is_counted_by_one_rank(degrees: tuple[int, int, int]) -> None:
    pp, dp, tp = degrees
    layout = Layout(world_size=pp * dp * tp, pp=pp, dp=dp, tp=tp)
    counting = [rank for rank in range(layout.world_size) if counts_data(layout.coordinates(rank))]
    assert sorted(map(layout.data_rank, counting)) == list(range(layout.data_ranks))


def test_expert_and_sharded_data_parallel_ranks_see_different_samples() -> None:
    for layout in (Layout(world_size=4, dp=2, ep=2), Layout(world_size=4, dp=2, fsdp=2)):
        assert [layout.data_rank(rank) for rank in range(4)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"width": 100, "heads": 3}, "--width 100 is not a multiple of --heads 3; 99 would be"),
        ({"experts": 1}, "--experts 1 is one too few to choose two; give 2 or more, or 0"),
        ({"resume": True}, "--resume needs --checkpoint-dir, the folder to resume from"),
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
def test_an_impossible_run_is_refused_by_its_flag(wrong: dict[str, Any], sentence: str) -> None:
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
