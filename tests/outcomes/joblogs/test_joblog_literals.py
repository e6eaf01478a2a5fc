"""The search for all literals at once finds the same lines as the search in turn."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep_outcomes.joblogs.kinds import KINDS
from lockstep_outcomes.joblogs.literals import LONGEST_LINE, LiteralSearch, kinds_by_literal

from ..joblog_cases import FOLDER

pytest.importorskip("ahocorasick_rs", reason="without it there is only one search")
TABLE = kinds_by_literal(KINDS)
AT_ONCE, IN_TURN = LiteralSearch(TABLE), LiteralSearch(TABLE, at_once=False)
LOGS = sorted(FOLDER.glob("*.log"))
PARTS = (*TABLE, b"\n", b"\n", b" ", b"x" * 40, b"na", b"n", b"step" * 9, b"\xff\0")


@pytest.mark.parametrize("log", LOGS, ids=lambda path: path.stem)
def test_both_searches_find_the_same_lines_of_a_log(log: Path) -> None:
    data = log.read_bytes()
    lines = list(AT_ONCE.lines(data))
    assert bool(lines) == any(literal in data for literal in TABLE)
    assert lines == list(IN_TURN.lines(data))


@given(st.lists(st.sampled_from(PARTS), max_size=60).map(b"".join))
def test_both_searches_find_the_same_lines_of_any_bytes(data: bytes) -> None:
    assert list(AT_ONCE.lines(data)) == list(IN_TURN.lines(data))


@pytest.mark.parametrize("shift", range(-30, 31, 3))
@pytest.mark.parametrize("newline", [b"", b"\n"])
def test_a_literal_across_the_edge_of_a_window_is_found_once(shift: int, newline: bytes) -> None:
    longest = max(TABLE, key=len)
    data = b"." * ((1 << 18) - shift) + newline + longest + b" " + longest + b"\n. NaN\n"
    lines = list(AT_ONCE.lines(data))
    assert lines == list(IN_TURN.lines(data))
    assert len(lines) >= 2


def test_a_log_full_of_literals_and_without_lines_is_searched_alike() -> None:
    data = b"NaN" * LONGEST_LINE * 8
    assert list(AT_ONCE.lines(data)) == list(IN_TURN.lines(data))
