"""Kinds of lines in a job's log that say something: one table, kinds.toml.

A line is of the first kind whose pattern it matches. ``literals`` are the bytes without which the
pattern cannot match; they find the few lines worth a regular expression among gigabytes.
"""

import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from lockstep_catalogue.vocabulary import FAILURE_CLASSES, VERDICTS, FailureClass, Verdict
from lockstep_records.text.documents import read_toml


class Tier(IntEnum):
    """What a line proves; a lower tier explains the higher ones."""

    CAUSE = 1
    """Names a cause by itself."""
    CRASH = 2
    """A rank's own failure with no better name, or the last words of its runtime."""
    LOST = 3
    """Names a rank that the others lost, without why."""
    NETWORK = 4
    """The network or its software complains: a cause where nobody died of anything else."""
    VICTIM = 5
    """Says that it ends because of another, or waited for it."""
    WRAPPER = 6
    """Passes on that something failed."""
    ENDING = 7
    """Somebody ended the job, or reports how it ended."""
    MILESTONE = 8
    """Progress, success, sizes, and what nobody understood."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of line.

    Attributes:
        blame: whom it names when few ranks print it, a group being the node. A kind that names the
            workload or nobody does so however few they are.
        literals: bytes of which a matching line holds at least one.
    """

    name: str
    tier: Tier
    failure_class: FailureClass
    blame: Verdict
    says: str
    literals: tuple[str, ...]
    pattern: re.Pattern[str]


_TABLE = read_toml(Path(__file__).with_suffix(".toml"))


def _read(row: dict[str, Any]) -> Kind:
    [failure_class] = (each for each in FAILURE_CLASSES if each == row["class"])
    [blame] = (each for each in VERDICTS if each == row["blame"])
    tier, pattern = Tier[row["tier"].upper()], re.compile(row["pattern"])
    says, literals = row.get("says", ""), tuple(row["literals"])
    return Kind(row["name"], tier, failure_class, blame, says, literals, pattern)


KINDS = tuple(map(_read, _TABLE["kinds"]))
DATA_ERROR = Kind(
    "data_error",
    Tier.CRASH,
    "user",
    "rank",
    "the data could not be read",
    ("",),
    re.compile("(?!)"),
)
"""What an exception becomes when its traceback shows that data was being read."""
KIND_BY_NAME = {kind.name: kind for kind in (DATA_ERROR, *reversed(KINDS))}

_RESTARTS = {cause: found for found, causes in _TABLE["restarts"].items() for cause in causes}
_RESTARTS_BY_CLASS = {"user": "fails_again", "infra": "after_repair"}


def restart_after(cause: str | None, failure_class: FailureClass | None) -> str:
    """What a cause lets expect of a restart: it helps, fails_again, after_repair, or unknown."""
    return _RESTARTS.get(cause or "") or _RESTARTS_BY_CLASS.get(failure_class or "", "unknown")


SOFTWARE_XIDS = frozenset({13, 31, 32, 43, 45, 68, 69})
"""Xids that the application causes, or that only report its end."""
LAUNCHER_ERRORS: tuple[str, ...] = tuple(_TABLE["errors"]["launcher"])
"""Exceptions that only pass on the failure of another process."""
HIDING_ERRORS = frozenset[str](_TABLE["errors"]["hiding"])
"""Those of them that tell of a failure without its cause."""
DATA_ERRORS = frozenset[str](_TABLE["errors"]["data"])
"""Exceptions that data which is read can raise."""
DATA_TRACES = re.compile(
    r"(?i)data|shard|h5py|hdf5|parquet|arrow|tokeni|loader|webdataset|corpus|\.jsonl?\b|\.tar\b|lmdb"
)
"""Words in a traceback of code that reads data."""

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
