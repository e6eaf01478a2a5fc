"""Durations, as people write them."""

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from lockstep_cli.options import DurationRange
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
