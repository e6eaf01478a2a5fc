import dataclasses
from pathlib import Path
from typing import Any

import click
import pytest

from lockstep_trainer.config import TrainConfig, flag_name, trainer_flags


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


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"width": 100, "heads": 3}, "--width 100 is not a multiple of --heads 3; 99 would be"),
        ({"experts": 1}, "--experts 1 is one too few to choose two; give 2 or more, or 0"),
        ({"resume": True}, "--resume needs --checkpoint-dir, the folder to resume from"),
    ],
)
def test_fields_that_do_not_fit_are_refused_in_one_sentence(
    wrong: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match="--") as refused:
        TrainConfig(**wrong)
    assert str(refused.value) == sentence


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
        (
            "timeout = 60",
            "timeout is 60; write a whole number and ms, s, m, h or d",
        ),
    ],
)
def test_an_invalid_file_is_refused_with_its_key(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text)
    with pytest.raises(click.UsageError) as refused:
        parse(["--config", str(file)])
    assert sentence in refused.value.format_message()
