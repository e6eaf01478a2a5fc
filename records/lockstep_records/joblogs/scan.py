"""One pass over one log: groups the lines that say something, in bounded memory."""

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
from lockstep_records.joblogs.launcher_summary import SUMMARY_KINDS, ExitSummary, LauncherExit
from lockstep_records.joblogs.literals import LONGEST_LINE, LiteralSearch, kinds_by_literal
from lockstep_records.joblogs.model import Line
from lockstep_records.joblogs.prefix import Origin, Stamp, clean, split_prefix
from lockstep_records.joblogs.progress import Milestones

MOST_FINDINGS = 2000
# Bounds on memory, for hostile logs and jobs of any size.
_MOST_ORIGINS = 100_000
_MOST_TEXT = 240
_MOST_KEY = 160
# `set -x` prints commands, whose arguments may hold any of the texts searched for.
_SHELL_TRACE = ("+ ", "++ ")
_TRACEBACK_BYTES, _TRACEBACK_LINES = 16_384, 120
# Addresses and numbers differ between ranks that raise the same exception.
_VARYING_PARTS = re.compile(r"0x[0-9a-fA-F]+|(?<![A-Za-z])\d+(?:\.\d+)?")
_LITERALS = LiteralSearch(kinds_by_literal(KINDS))


@dataclass(slots=True)
class LogLine:
    """A line and its position.

    Attributes:
        body: the text without its prefixes.
        number: of the line in its file, from 1.
        data: block that holds it, from ``start`` on.
        floor: end of the line before it that was parsed; no time is searched before that.
    """

    text: str
    body: str
    origin: Origin
    number: int
    data: bytes
    start: int
    floor: int
    stamp: Stamp | None = None


@dataclass(kw_only=True, slots=True)
class LineGroup:
    """Lines of one kind and key, while they are gathered; ``line`` is the first one.

    Attributes:
        origins: processes that printed them, in order.
        named_ranks: ranks that the lines name, whoever printed them.
        order: position of the first line among all lines of all files, ``last_order`` of the last.
    """

    kind: Kind
    key: str
    file: str
    line: LogLine
    count: int = 0
    origins: dict[Origin, None] = field(default_factory=dict)
    named_ranks: dict[int, None] = field(default_factory=dict)
    nodes: dict[str, None] = field(default_factory=dict)
    codes: dict[int, None] = field(default_factory=dict)
    order: int = 0
    last_order: int = 0

    @property
    def first(self) -> Line:
        """The first line as evidence, before its rank and time are known."""
        return Line(
            file=self.file, number=self.line.number, text=_short(self.line.text),
            kind=self.kind.name, rank=None, time=None,
        )  # fmt: skip


class Scan:
    """What one log has said so far; ``add`` its blocks in order.

    Args:
        name: of the file, for evidence.
        clock: of this file alone.
        first_order: order of the file's first line among the lines of all files.
    """

    def __init__(self, name: str, clock: Clock, first_order: int = 0) -> None:
        self.name = name
        self.clock = clock
        self.groups: dict[tuple[str, str], LineGroup] = {}
        self.milestones = Milestones()
        self.first_stamp: Stamp | None = None
        self.origins: dict[Origin, None] = {}
        self.lines = 0
        self.size_bytes = 0
        self.tracebacks: dict[Origin, int] = {}
        self.summary = ExitSummary()
        self.data_errors: dict[str, bool] = {}
        self.first_order = first_order

    def add(self, data: bytes) -> None:
        """Adds the next block of the log; it ends at a line's end unless the line is endless."""
        self.size_bytes += len(data)
        extra = 0
        # Progress bars overwrite their line by a carriage return: each state counts as a line, but
        # not in the line numbers, which an editor has to agree with.
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\0\n")
            extra = data.count(b"\0\n")
        if self.first_stamp is None:
            self.first_stamp = self.clock.first_in(data)
        counted, number, floor = 0, self.lines, 0
        for start, end, kinds in _LITERALS.lines(data):
            number += data.count(b"\n", counted, start) - data.count(b"\0\n", counted, start)
            counted = start
            text = clean(data[start : min(end, start + LONGEST_LINE)]).replace("\0", "")
            origin, body = split_prefix(text)
            self._add_line(LogLine(text, body, origin, number + 1, data, start, floor), kinds)
            floor = end
        self.clock.last_before(data, len(data), floor)
        self.lines += data.count(b"\n") - extra + (not data.endswith(b"\n"))

    def _add_line(self, line: LogLine, kinds: list[int]) -> None:
        if line.text.startswith(_SHELL_TRACE):
            return
        matched = next(
            ((KINDS[p], m) for p in kinds if (m := KINDS[p].pattern.search(line.body))), None
        )
        if matched is None:
            return
        kind, match = matched
        if line.origin != Origin() and len(self.origins) < _MOST_ORIGINS:
            self.origins[line.origin] = None
        stamp = self.clock.parse(line.text)
        line.stamp = stamp or self.clock.last_before(line.data, line.start, line.floor)
        order = self.first_order + line.number
        if self.milestones.add_line(kind.name, match, line.origin, line.stamp, order=order):
            return
        if kind.name == "traceback":
            if len(self.tracebacks) < _MOST_ORIGINS:
                self.tracebacks[line.origin] = self.tracebacks.get(line.origin, 0) + 1
        elif kind.name in SUMMARY_KINDS:
            for ended in self.summary.add_line(kind.name, match, line.origin):
                self._add(BY_NAME["summary_exit"], ended.key, line, ended=ended)
        elif kind.name == "exception":
            self._add_exception(kind, match, line)
        else:
            self._add(kind, _key(kind, match), line, match=match)

    def _add_exception(self, kind: Kind, match: re.Match[str], line: LogLine) -> None:
        """Adds the last line of a traceback; without one, the line only mentions an error."""
        before = line.data[max(0, line.start - _TRACEBACK_BYTES) : line.start]
        if not self.tracebacks.get(line.origin) and b'  File "' not in before:
            return
        self.tracebacks[line.origin] = max(0, self.tracebacks.get(line.origin, 0) - 1)
        name, key = match["type"].rpartition(".")[2], _key(kind, match)
        if name in LAUNCHER_ERRORS:
            return
        if name in DATA_ERRORS and self._was_reading_data(key, line, before):
            kind = DATA_ERROR
        self._add(kind, key, line)

    def _was_reading_data(self, key: str, line: LogLine, before: bytes) -> bool:
        """Whether the traceback shows that data was being read; searched once an exception."""
        if key not in self.data_errors and len(self.data_errors) < MOST_FINDINGS:
            # Lines of several ranks may be mixed; only those of the same origin are its traceback.
            frames = [
                body
                for origin, body in map(split_prefix, map(clean, _last_lines(before)))
                if origin == line.origin and body.startswith("  ")
            ]
            traceback = "\n".join((*frames, line.text))
            self.data_errors[key] = DATA_TRACES.search(traceback) is not None
        return self.data_errors.get(key, False)

    def _add(
        self,
        kind: Kind,
        key: str,
        line: LogLine,
        *,
        match: "re.Match[str] | None" = None,
        ended: LauncherExit | None = None,
    ) -> None:
        """Adds a line to those of its kind and key, unless there are too many groups already."""
        order = self.first_order + line.number
        group = self.groups.get((kind.name, key))
        if group is None:
            if len(self.groups) >= MOST_FINDINGS:
                return
            group = LineGroup(kind=kind, key=key, line=line, order=order, file=self.name)
            line.data = b""  # the group outlives its block
            self.groups[kind.name, key] = group
        group.count += 1
        group.last_order = order
        if len(group.origins) < _MOST_ORIGINS and line.origin != Origin():
            group.origins[line.origin] = None
        if match is not None:
            _add_details(group, match)
        if ended is not None:
            group.codes[ended.code] = None
            group.named_ranks |= dict.fromkeys(ended.ranks)
            group.nodes |= dict.fromkeys(ended.nodes)


def _key(kind: Kind, match: re.Match[str]) -> str:
    """What lines of one kind have in common: the exception, the Xid, the signal."""
    fields = match.groupdict()
    if kind.name == "exception":
        message = _VARYING_PARTS.sub("#", fields["message"] or "")
        return f"{fields['type'].rpartition('.')[2]}: {message}"[:_MOST_KEY].rstrip(": ")
    if kind.name == "srun_exit":
        return fields["how"].strip()[:_MOST_KEY]
    if kind.name == "slurm_cancelled":
        return fields["what"]
    return fields.get("xid") or fields.get("signal") or fields.get("signal2") or ""


def _add_details(group: LineGroup, match: re.Match[str]) -> None:
    fields = match.groupdict()
    for name in ("node", "node2", "node3"):
        # The node of a cancellation is the one that reports it, not one that failed.
        if fields.get(name) and group.kind.name != "slurm_cancelled":
            group.nodes[fields[name].strip(".,")] = None
    if fields.get("tasks") and len(group.named_ranks) < _MOST_ORIGINS:
        group.named_ranks |= dict.fromkeys(parse_tasks(fields["tasks"]))


def parse_tasks(text: str) -> list[int]:
    """Numbers in Slurm's list of tasks, such as 0-3,7; about 100,000 at most."""
    listed: list[int] = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        if low.isdigit() and (not high or high.isdigit()) and len(listed) < _MOST_ORIGINS:
            listed += range(int(low), min(int(high or low), int(low) + _MOST_ORIGINS) + 1)
    return listed


def _last_lines(data: bytes) -> list[bytes]:
    return data.splitlines()[-_TRACEBACK_LINES:]


def _short(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _MOST_TEXT else text[: _MOST_TEXT - 3] + "..."
