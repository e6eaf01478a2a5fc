"""Whichever way needles are looked for, the same lines are found."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep_records.joblogs.kinds import KINDS
from lockstep_records.joblogs.literals import LONGEST_LINE, Needles, kinds_by_needle

from .joblog_cases import FOLDER

pytest.importorskip("ahocorasick_rs", reason="without it there is but one way")
TABLE = kinds_by_needle(KINDS)
AT_ONCE, ONE_BY_ONE = Needles(TABLE), Needles(TABLE, at_once=False)
LOGS = sorted(FOLDER.glob("*.log"))
PARTS = (*TABLE, b"\n", b"\n", b" ", b"x" * 40, b"na", b"n", b"step" * 9, b"\xff\0")


@pytest.mark.parametrize("log", LOGS, ids=lambda path: path.stem)
def test_both_ways_find_the_same_lines_of_a_log(log: Path) -> None:
    data = log.read_bytes()
    found = list(AT_ONCE.lines(data))
    assert bool(found) == any(needle in data for needle in TABLE)
    assert found == list(ONE_BY_ONE.lines(data))


@given(st.lists(st.sampled_from(PARTS), max_size=60).map(b"".join))
def test_both_ways_find_the_same_in_any_bytes(data: bytes) -> None:
    assert list(AT_ONCE.lines(data)) == list(ONE_BY_ONE.lines(data))


@pytest.mark.parametrize("shift", range(-30, 31, 3))
@pytest.mark.parametrize("newline", [b"", b"\n"])
def test_a_needle_across_the_edge_of_a_piece_is_found_once(shift: int, newline: bytes) -> None:
    longest = max(TABLE, key=len)
    data = b"." * ((1 << 18) - shift) + newline + longest + b" " + longest + b"\n. nan\n"
    found = list(AT_ONCE.lines(data))
    assert found == list(ONE_BY_ONE.lines(data))
    assert len(found) >= 2


def test_a_log_full_of_needles_and_without_lines_is_searched_alike() -> None:
    data = b"nan" * LONGEST_LINE * 8
    assert list(AT_ONCE.lines(data)) == list(ONE_BY_ONE.lines(data))
