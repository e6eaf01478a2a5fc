"""Finds the few lines of a log that have one of many needles in them, in one pass where it can.

With the package ahocorasick-rs all needles are looked for at once, several times faster; without it
they are looked for one after the other, with the same result.
"""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lockstep_records.joblogs.kinds import Kind

LONGEST_LINE = 32_768
_PIECE = 1 << 18  # bounds the matches that are held at once where a hostile log is full of them

Hit = tuple[int, int]


class Needles:
    """Needles, each with the kinds that it may stand for.

    Args:
        kinds: numbers of the kinds by needle.
        at_once: whether the package may be used, where it is installed.
    """

    def __init__(self, kinds: Mapping[bytes, Sequence[int]], *, at_once: bool = True) -> None:
        self._needles = tuple(kinds)
        self._kinds = tuple(kinds.values())
        self._longest = max(map(len, self._needles))
        self._automaton = _automaton(self._needles) if at_once else None

    def lines(self, data: bytes) -> Iterator[tuple[int, int, list[int]]]:
        """Lines with a needle in them: begin, end, and the kinds that it may be, in order."""
        found: dict[int, tuple[int, set[int]]] = {}
        for number, place in self._hits(data):
            start, end = _line(data, place)
            found.setdefault(start, (end, set()))[1].update(self._kinds[number])
        for start in sorted(found):
            end, kinds = found[start]
            yield start, end, sorted(kinds)

    def _hits(self, data: bytes) -> Iterator[Hit]:
        """A needle's number and its first place in every line."""
        if self._automaton is not None:
            yield from self._together(data, self._automaton)
            return
        for number, needle in enumerate(self._needles):
            place = data.find(needle)
            while place >= 0:
                yield number, place
                end = data.find(b"\n", place)
                place = data.find(needle, end) if end >= 0 else -1

    def _together(self, data: bytes, automaton: Any) -> Iterator[Hit]:
        """The same of all needles, piece after piece; they overlap, so that no needle is cut."""
        passed = [0] * len(self._needles)
        for begin in range(0, len(data), _PIECE):
            piece = data[begin : begin + _PIECE + self._longest - 1]
            for number, at, _ in automaton.find_matches_as_indexes(piece, overlapping=True):
                if (place := begin + at) >= passed[number]:
                    end = data.find(b"\n", place)
                    passed[number] = len(data) if end < 0 else end
                    yield number, place


def kinds_by_needle(table: Sequence[Kind]) -> dict[bytes, list[int]]:
    """Places in the table of the kinds that a needle may stand for."""
    places: dict[bytes, list[int]] = {}
    for place, kind in enumerate(table):
        for needle in kind.needles:
            places.setdefault(needle.encode(), []).append(place)
    return places


def _line(data: bytes, place: int) -> tuple[int, int]:
    """Begin and end of the line around a place; of an endless line what lies before it is cut."""
    low = max(0, place - LONGEST_LINE)
    start = max(data.rfind(b"\n", low, place) + 1, low)
    end = data.find(b"\n", place)
    return start, len(data) if end < 0 else end


def _automaton(needles: Sequence[bytes]) -> Any | None:
    try:
        package = importlib.import_module("ahocorasick_rs")
    except ImportError:
        return None
    return package.BytesAhoCorasick(list(needles), implementation=package.Implementation.DFA)
