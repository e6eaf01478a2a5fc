"""Text of others reaches a terminal as one line that obeys nothing."""

import pytest

from lockstep_records.text.printable import printable


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
