"""One pass over one log: finds the lines that tell something and keeps what they say, bounded."""

import json
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

from lockstep_records.joblog_clock import Clock
from lockstep_records.joblog_kinds import (
    BY_NAME,
    DATA_ERROR,
    DATA_ERRORS,
    DATA_TRACES,
    KINDS,
    LAUNCHER_ERRORS,
    Kind,
)
from lockstep_records.joblog_marks import Marks
from lockstep_records.joblog_prefix import Stamp, Who, clean, split_prefix
from lockstep_records.joblogs import Line

MOST_FINDINGS = 2000
_MOST_VOICES = 100_000
_TEXT = 240
_LONGEST_LINE = 32_768
_KEY = 160
_TRACEBACK_BYTES = 6000
_ALL_ALIKE = re.compile(r"0x[0-9a-fA-F]+|(?<![A-Za-z])\d+(?:\.\d+)?")
_NEEDLES: dict[bytes, list[int]] = {}
for _place, _kind in enumerate(KINDS):
    for _needle in _kind.needles:
        _NEEDLES.setdefault(_needle.encode(), []).append(_place)


@dataclass(kw_only=True, slots=True)
class Found:
    """Lines of one kind and key, while they are gathered."""

    kind: Kind
    key: str
    count: int = 0
    who: dict[Who, None] = field(default_factory=dict)
    told_ranks: dict[int, None] = field(default_factory=dict)
    nodes: dict[str, None] = field(default_factory=dict)
    codes: dict[int, None] = field(default_factory=dict)
    order: int = 0
    last_order: int = 0
    first: Line
    first_who: Who
    stamp: Stamp | None


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
        self.summary: dict[Who, dict[str, object]] = {}
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
        for start, end, kinds in _hits(data):
            number += data.count(b"\n", counted, start) - data.count(b"\0\n", counted, start)
            counted = start
            text = clean(data[start : min(end, start + _LONGEST_LINE)]).replace("\0", "")
            self._line(text, number + 1, kinds, data, start, floor)
            floor = end
        self.clock.before(data, len(data), floor)
        self.lines += data.count(b"\n") - extra + (not data.endswith(b"\n"))

    def _line(
        self, text: str, number: int, kinds: list[int], data: bytes, start: int, floor: int
    ) -> None:
        if text.startswith(("+ ", "++ ")):
            return
        who, body = split_prefix(text)
        for place in kinds:
            kind = KINDS[place]
            if match := kind.pattern.search(body):
                break
        else:
            return
        if who != Who():
            if len(self.labels) < _MOST_VOICES:
                self.labels[who] = None
        order = self.place + number
        stamp = self.clock.of(text) or self.clock.before(data, start, floor)
        if self.marks.take(kind.name, match, who, stamp, order):
            return
        if kind.name == "traceback":
            self.tracebacks[who] = self.tracebacks.get(who, 0) + 1
            return
        if kind.name.startswith(("summary", "root_cause", "agent_exit", "mpi_exit")):
            self._summary(kind, match, who, text, number, stamp)
            return
        key = _key(kind, match, body)
        if kind.name == "exception":
            if not self.tracebacks.get(who) and b'  File "' not in data[max(0, start - _TRACEBACK_BYTES) : start]:
                return
            self.tracebacks[who] = max(0, self.tracebacks.get(who, 0) - 1)
            name = match["type"].rpartition(".")[2]
            if name in LAUNCHER_ERRORS:
                return
            if name in DATA_ERRORS and self._read_data(key, text, data, start):
                kind = DATA_ERROR
        self.add(kind, key, who, text, number, stamp, match)

    def _read_data(self, key: str, text: str, data: bytes, start: int) -> bool:
        """Whether the traceback shows that data was being read; asked once an exception."""
        if key not in self.data_errors:
            before = clean(data[max(0, start - _TRACEBACK_BYTES) : start])
            _, found, trace = before.rpartition("Traceback (most recent call last)")
            shown = f"{trace if found else before}\n{text}"
            self.data_errors[key] = DATA_TRACES.search(shown) is not None
        return self.data_errors[key]

    def add(
        self,
        kind: Kind,
        key: str,
        who: Who,
        text: str,
        number: int,
        stamp: Stamp | None,
        match: "re.Match[str] | None" = None,
    ) -> Found | None:
        """Puts a line to those that say the same; None when there are too many kinds already."""
        order = self.place + number
        found = self.found.get((kind.name, key))
        if found is None:
            if len(self.found) >= MOST_FINDINGS:
                return None
            line = Line(
                file=self.name, number=number, text=_short(text), kind=kind.name, rank=None, time=None
            )
            found = Found(
                kind=kind, key=key, first=line, first_who=who, stamp=stamp, order=order
            )
            self.found[kind.name, key] = found
        found.count += 1
        found.last_order = order
        if len(found.who) < _MOST_VOICES and who != Who():
            found.who[who] = None
        if match is not None:
            _details(found, match)
        return found

    def _summary(
        self, kind: Kind, match: re.Match[str], who: Who, text: str, number: int, stamp: Stamp | None
    ) -> None:
        """The list of failures that torchrun prints, a field a line."""
        state = self.summary.setdefault(who, {})
        if kind.name == "root_cause":
            state["root"] = True
        elif kind.name == "summary_host":
            state["node"] = match["node"]
        elif kind.name == "summary_rank":
            state["rank"] = int(match["rank"])
        elif kind.name == "summary_exit" and "rank" in state:
            root = bool(state.get("root"))
            found = self.add(kind, f"{match['code']}{' first' if root else ''}", who, text, number, stamp)
            if found is not None:
                found.told_ranks[int(str(state["rank"]))] = None
                found.codes[int(match["code"])] = None
                if "node" in state:
                    found.nodes[str(state["node"])] = None
            self.summary[who] = {"root": root}
        elif kind.name == "agent_exit":
            code = match["code"] or match["code2"]
            found = self.add(kind, code, who, text, number, stamp)
            if found is not None:
                found.codes[int(code)] = None
        elif kind.name == "mpi_exit":
            code = -int(match["signal"] or 6)
            found = self.add(BY_NAME["summary_exit"], f"{code} first", who, text, number, stamp)
            if found is not None:
                found.codes[code] = None
                found.told_ranks[int(match["rank"] or match["rank2"])] = None


def _hits(data: bytes) -> Iterator[tuple[int, int, list[int]]]:
    """Lines with a needle in them: begin, end, and the kinds that it may be, in table order."""
    lines: dict[int, tuple[int, set[int]]] = {}
    for needle, kinds in _NEEDLES.items():
        place = data.find(needle)
        while place >= 0:
            low = max(0, place - _LONGEST_LINE)
            start = max(data.rfind(b"\n", low, place) + 1, low)
            end = data.find(b"\n", place)
            end = len(data) if end < 0 else end
            lines.setdefault(start, (end, set()))[1].update(kinds)
            place = data.find(needle, end)
    for start in sorted(lines):
        end, places = lines[start]
        yield start, end, sorted(places)


def _key(kind: Kind, match: re.Match[str], body: str) -> str:
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
    """Slurm's list of tasks, such as 0-3,7; at most a million."""
    listed: list[int] = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        if low.isdigit() and (not high or high.isdigit()) and len(listed) < 1_000_000:
            listed += range(int(low), min(int(high or low), int(low) + 1_000_000) + 1)
    return listed


def _short(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _TEXT else text[: _TEXT - 3] + "..."
