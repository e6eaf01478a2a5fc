"""One pass over one log: finds the lines that tell something and keeps what they say, bounded."""

import re
from dataclasses import dataclass, field

from lockstep_records.joblogs.clock import Clock
from lockstep_records.joblogs.kinds import (
    BY_NAME,
    DATA_ERROR,
    DATA_ERRORS,
    DATA_TRACES,
    KINDS,
    LAUNCHER_ERRORS,
    Kind,
)
from lockstep_records.joblogs.launcher_summary import SUMMARY, Exited, Summary
from lockstep_records.joblogs.literals import LONGEST_LINE, Needles, kinds_by_needle
from lockstep_records.joblogs.model import Line
from lockstep_records.joblogs.prefix import Stamp, Who, clean, split_prefix
from lockstep_records.joblogs.progress import Marks

MOST_FINDINGS = 2000
_MOST_VOICES = 100_000
_TEXT = 240
_KEY = 160
_SHELL_TRACE = ("+ ", "++ ")
_TRACEBACK_BYTES, _TRACEBACK_LINES = 16_384, 120
_ALL_ALIKE = re.compile(r"0x[0-9a-fA-F]+|(?<![A-Za-z])\d+(?:\.\d+)?")
_NEEDLES = Needles(kinds_by_needle(KINDS))


@dataclass(slots=True)
class Said:
    """A line and where it stands: ``data[start:]``, with nothing looked at after ``floor``."""

    text: str
    body: str
    who: Who
    number: int
    data: bytes
    start: int
    floor: int
    stamp: Stamp | None = None


@dataclass(kw_only=True, slots=True)
class Found:
    """Lines of one kind and key, while they are gathered; ``said`` is the first."""

    kind: Kind
    key: str
    file: str
    said: Said
    count: int = 0
    who: dict[Who, None] = field(default_factory=dict)
    told_ranks: dict[int, None] = field(default_factory=dict)
    nodes: dict[str, None] = field(default_factory=dict)
    codes: dict[int, None] = field(default_factory=dict)
    order: int = 0
    last_order: int = 0

    @property
    def first(self) -> Line:
        """The first line as evidence, before its rank and time are known."""
        return Line(
            file=self.file, number=self.said.number, text=_short(self.said.text),
            kind=self.kind.name, rank=None, time=None,
        )  # fmt: skip


class Scan:
    """What one log has told so far; ``take`` its pieces in order."""

    def __init__(self, name: str, clock: Clock, place: int = 0) -> None:
        self.name = name
        self.clock = clock
        self.found: dict[tuple[str, str], Found] = {}
        self.marks = Marks()
        self.first: Stamp | None = None
        self.labels: dict[Who, None] = {}
        self.lines = 0
        self.size_bytes = 0
        self.tracebacks: dict[Who, int] = {}
        self.summary = Summary()
        self.data_errors: dict[str, bool] = {}
        self.place = place

    def take(self, data: bytes) -> None:
        """The next piece of the log; it ends at a line's end unless the line is endless."""
        self.size_bytes += len(data)
        extra = 0
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\0\n")
            extra = data.count(b"\0\n")
        if self.first is None:
            self.first = self.clock.first_in(data)
        counted, number, floor = 0, self.lines, 0
        for start, end, kinds in _NEEDLES.lines(data):
            number += data.count(b"\n", counted, start) - data.count(b"\0\n", counted, start)
            counted = start
            text = clean(data[start : min(end, start + LONGEST_LINE)]).replace("\0", "")
            who, body = split_prefix(text)
            self._line(Said(text, body, who, number + 1, data, start, floor), kinds)
            floor = end
        self.clock.before(data, len(data), floor)
        self.lines += data.count(b"\n") - extra + (not data.endswith(b"\n"))

    def _line(self, said: Said, kinds: list[int]) -> None:
        if said.text.startswith(_SHELL_TRACE):
            return
        found = next(
            ((KINDS[p], m) for p in kinds if (m := KINDS[p].pattern.search(said.body))), None
        )
        if found is None:
            return
        kind, match = found
        if said.who != Who() and len(self.labels) < _MOST_VOICES:
            self.labels[said.who] = None
        told = self.clock.of(said.text)
        said.stamp = told or self.clock.before(said.data, said.start, said.floor)
        order = self.place + said.number
        if self.marks.take(kind.name, match, said.who, said.stamp, order=order):
            return
        if kind.name == "traceback":
            if len(self.tracebacks) < _MOST_VOICES:
                self.tracebacks[said.who] = self.tracebacks.get(said.who, 0) + 1
        elif kind.name in SUMMARY:
            for exited in self.summary.take(kind.name, match, said.who):
                self._add(BY_NAME["summary_exit"], exited.key, said, exited=exited)
        elif kind.name == "exception":
            self._exception(kind, match, said)
        else:
            self._add(kind, _key(kind, match), said, match=match)

    def _exception(self, kind: Kind, match: re.Match[str], said: Said) -> None:
        """The line that ends a traceback; one that ends none is only talk about an error."""
        before = said.data[max(0, said.start - _TRACEBACK_BYTES) : said.start]
        if not self.tracebacks.get(said.who) and b'  File "' not in before:
            return
        self.tracebacks[said.who] = max(0, self.tracebacks.get(said.who, 0) - 1)
        name, key = match["type"].rpartition(".")[2], _key(kind, match)
        if name in LAUNCHER_ERRORS:
            return
        if name in DATA_ERRORS and self._read_data(key, said, before):
            kind = DATA_ERROR
        self._add(kind, key, said)

    def _read_data(self, key: str, said: Said, before: bytes) -> bool:
        """Whether the traceback shows that data was being read; asked once an exception."""
        if key not in self.data_errors and len(self.data_errors) < MOST_FINDINGS:
            trace = (split_prefix(clean(line)) for line in before.splitlines()[-_TRACEBACK_LINES:])
            own = [body for who, body in trace if who == said.who and body.startswith("  ")]
            shown = "\n".join((*own, said.text))
            self.data_errors[key] = DATA_TRACES.search(shown) is not None
        return self.data_errors.get(key, False)

    def _add(
        self,
        kind: Kind,
        key: str,
        said: Said,
        *,
        match: "re.Match[str] | None" = None,
        exited: Exited | None = None,
    ) -> None:
        """Puts a line to those that say the same, unless there are too many kinds already."""
        order = self.place + said.number
        found = self.found.get((kind.name, key))
        if found is None:
            if len(self.found) >= MOST_FINDINGS:
                return
            found = Found(kind=kind, key=key, said=said, order=order, file=self.name)
            said.data = b""
            self.found[kind.name, key] = found
        found.count += 1
        found.last_order = order
        if len(found.who) < _MOST_VOICES and said.who != Who():
            found.who[said.who] = None
        if match is not None:
            _details(found, match)
        if exited is not None:
            found.codes[exited.code] = None
            found.told_ranks |= dict.fromkeys(exited.ranks)
            found.nodes |= dict.fromkeys(exited.nodes)


def _key(kind: Kind, match: re.Match[str]) -> str:
    told = match.groupdict()
    if kind.name == "exception":
        message = _ALL_ALIKE.sub("#", told["message"] or "")
        return f"{told['type'].rpartition('.')[2]}: {message}"[:_KEY].rstrip(": ")
    if kind.name == "srun_exit":
        return told["how"].strip()[:_KEY]
    if kind.name == "slurm_cancelled":
        return told["what"]
    return told.get("xid") or told.get("signal") or told.get("signal2") or ""


def _details(found: Found, match: re.Match[str]) -> None:
    told = match.groupdict()
    for name in ("node", "node2", "node3"):
        if told.get(name) and found.kind.name != "slurm_cancelled":
            found.nodes[told[name].strip(".,")] = None
    if told.get("tasks") and len(found.told_ranks) < _MOST_VOICES:
        found.told_ranks |= dict.fromkeys(tasks(told["tasks"]))


def tasks(text: str) -> list[int]:
    """Slurm's list of tasks, such as 0-3,7; at most 100,000."""
    listed: list[int] = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        if low.isdigit() and (not high or high.isdigit()) and len(listed) < _MOST_VOICES:
            listed += range(int(low), min(int(high or low), int(low) + _MOST_VOICES) + 1)
    return listed


def _short(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _TEXT else text[: _TEXT - 3] + "..."
