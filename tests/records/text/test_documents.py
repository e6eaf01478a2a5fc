"""Documents of few bytes that stand for much are refused before they are decoded."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from lockstep_cli.options import DurationRange
from lockstep_records.text.documents import DocumentError, decode_json, read_toml
from lockstep_records.text.durations import format_duration, parse_duration
from lockstep_records.text.printable import printable
from lockstep_records.text.yaml_documents import check_yaml, read_yaml

_LAUGHS = "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10))
YAML = {
    "aliases of aliases": f"a0: &a0 [x,x,x]\n{_LAUGHS}",
    "merges": "a: &a {k: v}\n" + "".join(f"b{n}: {{<<: [{'*a,' * 999}*a]}}\n" for n in range(99)),
    "contains itself": "a: &a [*a]\n",
    "nested lists": "[" * 50_000,
    "nested items": "- " * 50_000 + "x",
    "nested keys": "? " * 20_000,
    "base 60": "n: 1" + ":59" * 100_000,
    "hexadecimal": "n: 0x" + "f" * 10**6,
    "a program": "!!python/object/apply:os.system ['true']\n",
    "two documents": "a\n---\nb\n",
}
TOML = {"dotted key": "a" + ".a" * 20_000 + " = 1\n", "nested arrays": "a = " + "[" * 2000}
JSON: dict[str, str | bytes] = {
    "nested": "[" * 4_000_000,
    "nested members": '{"a":' * 1_000_000,
    "entries": "[" + "0," * 2_000_000 + "0]",
    "keys": "{" + ",".join(f'"{n}":0' for n in range(1_000_000)) + "}",
    "digits": "9" * 2_000_000,
    "not a number": "NaN",
    "UTF-16": '{"id": "a"}'.encode("utf-16"),
    "byte order": b"\xef\xbb\xbf{}",
}


@pytest.mark.parametrize("name", [*YAML, *TOML, *JSON])
def test_what_is_too_large_once_decoded_is_refused_in_a_moment(tmp_path: Path, name: str) -> None:
    path = tmp_path / "document"
    document: str | bytes = {**YAML, **TOML, **JSON}[name]
    path.write_bytes(document if isinstance(document, bytes) else document.encode())
    readers: dict[str, Callable[[Path], Any]] = {
        **dict.fromkeys(YAML, read_yaml),
        **dict.fromkeys(TOML, read_toml),
        **dict.fromkeys(JSON, lambda path: decode_json(path.read_bytes())),
    }
    begin = time.process_time()
    with pytest.raises(DocumentError) as raised:
        readers[name](path)
    assert time.process_time() - begin < 1.0
    assert len(str(raised.value)) < 300
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("depth", [8, 64])
def test_ordinary_documents_are_read(tmp_path: Path, depth: int) -> None:
    text = f"a: &a [1, 1:30, '{'9' * 500}']\nb: *a\nc: *a\n" + "".join(
        f"line {n}: {n}\n" for n in range(2000)
    )
    path = tmp_path / "document"
    path.write_text(text)
    assert read_yaml(path)["b"] == read_yaml(path)["c"]
    check_yaml("[" * depth + "]" * depth)
    path.write_text("listen = '127.0.0.1:0'\n[a.b.c]\nd = 1\n")
    assert read_toml(path)["a"]["b"]["c"]["d"] == 1
    nested = "[" * depth + "9007199254740992" + "]" * depth
    assert str(decode_json(nested)) == nested


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


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("rank 3 raised LookupError: no shard 7", "rank 3 raised LookupError: no shard 7"),
        ("größer 字 →", "größer 字 →"),
        ("\x1b]0;title\x07\x1b[2Jred", "]0;title [2Jred"),
        ("\x9b31mred", "31mred"),
        ("safe\roverwritten", "safe overwritten"),
        ("a\nb\tc\x00d\x7fe", "a b c d e"),
        ("abc\u202egnp.exe\u2066", "abc gnp.exe"),
        ("\ud800lone", "lone"),
        ("line\u2028separator", "line separator"),
        ("[red]markup[/red]", "[red]markup[/red]"),
        ("", ""),
    ],
)
def test_a_terminal_gets_one_line_of_printable_characters(text: str, printed: str) -> None:
    assert printable(text) == printed
    assert printable(text).isprintable()


def test_a_long_text_ends_with_dots_at_the_bound() -> None:
    assert printable("x" * 11, 10) == "x" * 7 + "..."
    assert printable("x" * 10, 10) == "x" * 10
    assert len(printable("\x1b" * 1_000_000)) <= 2000
