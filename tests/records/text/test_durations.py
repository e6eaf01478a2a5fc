"""Durations, atomic files and intervals."""

import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from lockstep_cli.options import DurationRange
from lockstep_records.file_access.atomic_file import write_atomically
from lockstep_records.text.durations import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("5s", 5), ("2m", 120), ("1h", 3600), ("28d", 28 * 86400), ("0s", 0)],
)
def test_a_duration_is_one_number_and_one_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "5 s", "-5s", "1.5s", "1h30m", "nan", "s", "5S", "5s\n"])
def test_what_is_no_duration_is_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration; write a whole number"):
        parse_duration(text)


@given(st.integers(min_value=0, max_value=10**9 - 1))
def test_what_is_written_reads_back_to_the_millisecond(milliseconds: int) -> None:
    assert round(parse_duration(format_duration(milliseconds / 1000)) * 1000) == milliseconds


@pytest.mark.parametrize(
    ("argument", "message"),
    [("5", "not a duration"), ("50ms", "0.1s"), ("2h", "range"), ("x", "not a duration")],
)
def test_an_option_names_the_value_and_the_remedy(argument: str, message: str) -> None:
    @click.command()
    @click.option("--wait", type=DurationRange(0.1, 3600), default=1.0)
    def command(wait: float) -> None:
        click.echo(wait)

    answer = CliRunner().invoke(command, ["--wait", argument])
    assert answer.exit_code == 2
    assert message.replace("0.1s", "100ms") in answer.output
    assert argument in answer.output
    assert CliRunner().invoke(command, ["--wait", "2m"]).output == "120.0\n"
    assert CliRunner().invoke(command).output == "1.0\n"


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_replaced_in_one_move_with_its_mode(tmp_path: Path, *, durable: bool) -> None:
    path = tmp_path / "state.json"
    write_atomically(path, "old")
    write_atomically(path, b"new", mode=0o640, durable=durable)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["state.json"]  # noqa: PTH208  # hidden files too


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "taken"
    path.mkdir()
    (path / "inside").write_text("x", encoding="utf-8")
    with pytest.raises(OSError, match="directory"):
        write_atomically(path, "new")
    assert sorted(os.listdir(tmp_path)) == ["taken"]  # noqa: PTH208  # hidden files too
