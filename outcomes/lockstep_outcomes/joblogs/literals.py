"""Lines that hold one of many literals, found in one pass over a block of a log.

With the package ahocorasick-rs all literals are searched at once, several times faster; without it
one after the other, with the same result.
"""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lockstep_outcomes.joblogs.kinds import Kind

LONGEST_LINE = 8192
_WINDOW_BYTES = 1 << 18  # bounds the matches in memory where a hostile log is full of them

Hit = tuple[int, int]


class LiteralSearch:
    """A search for literals, each with the kinds of line that may hold it, by their index."""

    def __init__(self, kinds: Mapping[bytes, Sequence[int]], *, at_once: bool = True) -> None:
        self._literals, self._kinds = tuple(kinds), tuple(kinds.values())
        self._longest = max(map(len, self._literals))
        self._automaton = _automaton(self._literals) if at_once else None

    def lines(self, data: bytes) -> Iterator[tuple[int, int, list[int]]]:
        """Lines that hold a literal: start, end, and the kinds that may match, ascending."""
        lines: dict[int, tuple[int, set[int]]] = {}
        for index, offset in self._hits(data):
            start, end = _line_around(data, offset)
            lines.setdefault(start, (end, set()))[1].update(self._kinds[index])
        for start in sorted(lines):
            end, kinds = lines[start]
            yield start, end, sorted(kinds)

    def _hits(self, data: bytes) -> Iterator[Hit]:
        if self._automaton is not None:
            yield from self._all_at_once(data, self._automaton)
            return
        for index, literal in enumerate(self._literals):
            offset = data.find(literal)
            while offset >= 0:
                yield index, offset
                end = data.find(b"\n", offset)
                offset = data.find(literal, end) if end >= 0 else -1

    def _all_at_once(self, data: bytes, automaton: Any) -> Iterator[Hit]:
        passed = [0] * len(self._literals)  # offsets up to which the line of a hit reaches
        for begin in range(0, len(data), _WINDOW_BYTES):
            # Windows overlap, so that no literal is split between two of them.
            window = data[begin : begin + _WINDOW_BYTES + self._longest - 1]
            for index, start, _ in automaton.find_matches_as_indexes(window, overlapping=True):
                # One hit a line is enough; a line full of a literal would be examined for each.
                if (offset := begin + start) >= passed[index]:
                    end = data.find(b"\n", offset)
                    passed[index] = len(data) if end < 0 else end
                    yield index, offset


def kinds_by_literal(table: Sequence[Kind]) -> dict[bytes, list[int]]:
    """Indices in the table of the kinds whose lines may hold a literal."""
    indices: dict[bytes, list[int]] = {}
    for index, kind in enumerate(table):
        for literal in kind.literals:
            indices.setdefault(literal.encode(), []).append(index)
    return indices


def _line_around(data: bytes, offset: int) -> tuple[int, int]:
    """Start and end of the line around an offset; an endless one starts ``LONGEST_LINE`` before."""
    low = max(0, offset - LONGEST_LINE)
    start = max(data.rfind(b"\n", low, offset) + 1, low)
    end = data.find(b"\n", offset)
    return start, len(data) if end < 0 else end


def _automaton(literals: Sequence[bytes]) -> Any | None:
    try:
        package = importlib.import_module("ahocorasick_rs")
    except ImportError:
        return None
    return package.BytesAhoCorasick(list(literals), implementation=package.Implementation.DFA)
