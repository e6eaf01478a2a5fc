"""One pass over one log: groups the lines that say something, in bounded memory."""

import json
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lockstep_outcomes.joblogs.clock import Clock
from lockstep_outcomes.joblogs.kinds import (
    DATA_ERROR,
    DATA_ERRORS,
    DATA_TRACES,
    HIDING_ERRORS,
    KIND_BY_NAME,
    KINDS,
    LAUNCHER_ERRORS,
    LONGEST_LINE,
    Kind,
    LiteralSearch,
    kinds_by_literal,
)
from lockstep_outcomes.joblogs.model import Line
from lockstep_outcomes.joblogs.prefix import Origin, Stamp, clean, split_prefix
from lockstep_outcomes.joblogs.progress import MilestoneLine, Milestones

SUMMARY_KINDS = frozenset({"root_cause", "exit_field", "exit_line"})


@dataclass(frozen=True, slots=True)
class LauncherExit:
    """The exit of ranks; ``root`` when the launcher calls it the first failure."""

    code: int
    root: bool = False
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """What distinguishes it from other exits."""
        return f"{self.code}{' first' if self.root else ''}{'' if self.ranks else ' somewhere'}"


@dataclass(slots=True)
class ExitSummary:
    """The entry that each launcher is printing: a field a line, or all in one."""

    entries: dict[Origin, LauncherExit] = field(default_factory=dict)

    def add_line(self, name: str, match: re.Match[str], origin: Origin) -> LauncherExit | None:
        """Adds one line; the exit where that line completes one."""
        found = {key.rstrip(_DIGITS): value for key, value in match.groupdict().items() if value}
        entry = (
            self.entries.get(origin, LauncherExit(0)) if name != "exit_line" else LauncherExit(0)
        )
        ranks = (int(found["rank"]),) if "rank" in found else entry.ranks
        nodes = (found["node"],) if "node" in found else entry.nodes
        entry = replace(entry, ranks=ranks, nodes=nodes, root=entry.root or name == "root_cause")
        if name == "exit_line":
            ranks = ranks or (() if origin.rank is None else (origin.rank,))
            nodes = nodes or (() if origin.node is None else (origin.node,))
            return LauncherExit(_code_of(found), "MPI_ABORT" in match[0], ranks, nodes)
        is_complete = bool(ranks) and found.keys() & {"code", "signal"}
        if origin in self.entries or len(self.entries) < MOST_ORIGINS:
            self.entries[origin] = LauncherExit(0, entry.root) if is_complete else entry
        return replace(entry, code=_code_of(found)) if is_complete else None


def _code_of(found: Mapping[str, str]) -> int:
    """The exit code that a line states; negative for a signal, by number or by name."""
    if "code" in found:
        return int(found["code"])
    name = found.get("signal", "SIGKILL" if "killed" in found else "")
    if name.startswith("SIG"):
        return -getattr(signal, name, signal.SIGABRT)
    return 1 if "raised" in found else -int(name or signal.SIGABRT)


_DIGITS = "0123456789"
MOST_ORIGINS = 100_000  # a bound on memory, for hostile logs and jobs of any size
_MOST_CODES = 1000
_MOST_NAME = 255
_MOST_DIGITS = 7
_MOST_TEXT = 240
_MOST_KEY = 160
# Addresses and numbers differ between ranks that raise the same exception.
_VARYING_PARTS = re.compile(r"0x[0-9a-fA-F]+|(?<![A-Za-z])\d+(?:\.\d+)?")


@dataclass(slots=True)
class LogLine:
    """A line and its position.

    Attributes:
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
    is_mild: bool = True

    @property
    def all_nodes(self) -> list[str]:
        """Nodes that the lines name, else those of who printed them."""
        return list(self.nodes) or [origin.node for origin in self.origins if origin.node]

    @property
    def first(self) -> Line:
        """The first line as evidence, before its rank and time are known."""
        return Line(
            file=self.file, number=self.line.number, text=shortened(self.line.text),
            kind=self.kind.name, rank=None, time=None,
        )  # fmt: skip


def key_of(kind: Kind, match: re.Match[str]) -> str:
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


def add_details(group: LineGroup, match: re.Match[str], *, with_tasks: bool) -> None:
    """Adds the nodes and, where they are ranks, the tasks that a line names."""
    fields = match.groupdict()
    for name, value in fields.items():
        # The node of a cancellation is the one that reports it, not one that failed.
        if value and name.startswith("node") and group.kind.name != "slurm_cancelled":
            _add_node(group, value.strip(".,"))
    if with_tasks and fields.get("tasks") and len(group.named_ranks) < MOST_ORIGINS:
        group.named_ranks |= dict.fromkeys(parse_tasks(fields["tasks"]))


def add_exit(group: LineGroup, ended: LauncherExit) -> None:
    """Adds the code, the ranks and the nodes of an exit that a launcher reports."""
    if len(group.codes) < _MOST_CODES:
        group.codes[ended.code] = None
    if len(group.named_ranks) < MOST_ORIGINS:
        group.named_ranks |= dict.fromkeys(ended.ranks)
    for node in ended.nodes:
        _add_node(group, node)


def _add_node(group: LineGroup, node: str) -> None:
    if len(group.nodes) < MOST_ORIGINS:
        group.nodes[node[:_MOST_NAME]] = None


def parse_tasks(text: str) -> list[int]:
    """Numbers in Slurm's list of tasks, such as 0-3,7; about 100,000 at most."""
    listed: list[int] = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        if _is_number(low) and (not high or _is_number(high)) and len(listed) < MOST_ORIGINS:
            listed += range(int(low), min(int(high or low), int(low) + MOST_ORIGINS) + 1)
    return listed


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MOST_DIGITS


def shortened(text: str) -> str:
    """The text without its margins, with dots where more than 240 characters are left out."""
    text = text.strip()
    return text if len(text) <= _MOST_TEXT else text[: _MOST_TEXT - 3] + "..."


MOST_FINDINGS = 2000
# `set -x` prints commands, whose arguments may hold any of the texts searched for.
_SHELL_TRACE = ("+ ", "++ ")
_LAUNCH = re.compile(r"\++ srun (?P<arguments>.*)")
_NUM_TASKS = re.compile(r"(?:--ntasks[= ]|-n ?)(\d{1,7})\b")
# Ranks that fail at the same moment write into each other's lines.
_REPEATED = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w*?\.)*[A-Z]\w*?(?:Error|Exception|StopIteration))(?P=type)+"
)
_TRACEBACK_BYTES, _TRACEBACK_LINES = 16_384, 120
_RAISED = re.compile(r"(?P<type>(?:[A-Za-z_]\w*\.)+\w+|[A-Z]\w*(?=: ))(?::\s*(?P<message>.*))?")
# An exception that passes on that another process ended.
_OTHER_ENDED = re.compile(
    r"\b(?:[Pp]rocess(?:es)?|[Ww]orkers?|[Cc]hild|[Ss]ubprocess)\b.{0,60}\b(?:terminated|died|exited|killed)\b"
)
_MILD = re.compile(r"(?<!NCCL )\b(?:WARN(?:ING)?|INFO|DEBUG|NOTICE)\b|(?:^|[\s\[])[WI]\d{4} \d\d:")
_STRUCTURED = '{"'
_MESSAGES = ("message", "msg", "text", "event", "log", "error", "exception", "exc_info", "stack")
_LAST = len(KINDS) - 1  # what calls itself an error, and is nothing else
_BAR_REMAINDER = re.compile(KIND_BY_NAME["bar"].pattern.pattern + r"[^\]]{0,80}\](?P<rest>.*\S)")
_LITERALS = LiteralSearch(kinds_by_literal(KINDS))


def _parts(line: LogLine) -> list[LogLine]:
    if not line.body.startswith(_STRUCTURED):
        return [line]
    try:
        entry = json.loads(line.body)
    except (ValueError, RecursionError):
        return [line]
    texts = [text for name in _MESSAGES if isinstance(text := entry.get(name), str)]
    return [replace(line, body=body) for body in "\n".join(texts).splitlines()] or [line]


class Scan:
    """State of reading one log, its blocks in order; ``rank`` is that in the name of the file."""

    def __init__(
        self, name: str, clock: Clock, first_order: int = 0, rank: int | None = None
    ) -> None:
        self.name, self.clock, self.rank = name, clock, rank
        self.groups: dict[tuple[str, str], LineGroup] = {}
        self.milestones = Milestones()
        self.first_stamp: Stamp | None = None
        self.origins: dict[Origin, None] = {}
        self.lines = 0
        self.tracebacks: dict[Origin, int] = {}
        self.summary = ExitSummary()
        self.data_errors: dict[str, bool] = {}
        self.first_order = first_order
        self._is_helper_step = False
        self.num_severe = self.num_unknown = 0
        self.first_unknown = ""

    def add(self, data: bytes) -> None:
        """Adds the next block of the log; it ends at a line's end unless the line is endless."""
        extra = 0
        # Progress bars overwrite their line by a carriage return: each state counts as a line, but
        # not in the line numbers, which an editor has to agree with.
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\0\n")
            extra = data.count(b"\0\n")
        if self.first_stamp is None:
            self.first_stamp = self.clock.first_in(data, skipped=KIND_BY_NAME["watcher"].pattern)
        counted, number, floor = 0, self.lines, 0
        for start, end, kinds in _LITERALS.lines(data):
            number += data.count(b"\n", counted, start) - data.count(b"\0\n", counted, start)
            counted = start
            text = clean(data[start : min(end, start + LONGEST_LINE)]).replace("\0", "")
            origin, body = split_prefix(text)
            line = LogLine(text, body, origin, number + 1, data, start, floor)
            is_known = [self._add_line(part, kinds) for part in _parts(line)]
            if kinds[-1] == _LAST and KINDS[_LAST].pattern.search(text):
                self.num_severe += 1
                self.num_unknown += not any(is_known)
                self.first_unknown = self.first_unknown or ("" if any(is_known) else text)
            floor = end
        self.clock.last_before(data, len(data), floor)
        self.lines += data.count(b"\n") - extra + (not data.endswith(b"\n"))

    def _add_line(self, line: LogLine, kinds: list[int]) -> bool:
        """Adds a line, or a line of a structured one; False where no kind knows it."""
        if line.text.startswith(_SHELL_TRACE):
            self._add_launch(line.text)
            return True
        matched = next(
            ((KINDS[p], m) for p in kinds if (m := KINDS[p].pattern.search(line.body))), None
        )
        if matched is None or matched[0] is KINDS[_LAST]:
            return False
        self._add_known(line, *matched)
        return True

    def _add_known(self, line: LogLine, kind: Kind, match: re.Match[str]) -> None:
        if self._is_helper_step:
            # One task of a step beside the training: its number is not a rank of the job.
            line.origin = replace(line.origin, task=None)
        if line.origin != Origin() and len(self.origins) < MOST_ORIGINS:
            self.origins[line.origin] = None
        own = self.clock.parse(line.text, is_of_job=kind.name != "watcher")
        line.stamp = own or self.clock.last_before(line.data, line.start, line.floor)
        milestone = MilestoneLine(
            name=kind.name, match=match, origin=line.origin, stamp=line.stamp, own=own,
            order=self.first_order + line.number,
        )  # fmt: skip
        if self.milestones.add_line(milestone):
            return
        self.milestones.bound(line.stamp)
        if (bar := _BAR_REMAINDER.match(line.body)) is not None:
            # A last word is written into the line of the bar.
            self.milestones.add_line(replace(milestone, name="bar", match=bar))
            line.text = bar["rest"]
        if line.text.startswith(_STRUCTURED):
            line.text = line.body
        self._add_finding(kind, match, line)

    def _add_launch(self, text: str) -> None:
        if (match := _LAUNCH.match(text)) is None:
            return
        tasks = _NUM_TASKS.search(match["arguments"])
        self._is_helper_step = tasks is not None and int(tasks[1]) == 1
        self.milestones.begin_launcher_step()

    def _add_finding(self, kind: Kind, match: re.Match[str], line: LogLine) -> None:
        if kind.name == "traceback":
            if len(self.tracebacks) < MOST_ORIGINS:
                self.tracebacks[line.origin] = self.tracebacks.get(line.origin, 0) + 1
                self._add_raised(line)
        elif kind.name in SUMMARY_KINDS:
            if ended := self.summary.add_line(kind.name, match, line.origin):
                self._add(KIND_BY_NAME["exit_line"], ended.key, line, ended=ended)
        elif kind.name == "exception":
            self._add_exception(kind, match, line)
        else:
            self._add(kind, key_of(kind, match), line, match=match)

    def _add_raised(self, line: LogLine) -> None:
        """Adds what ends a traceback where its name is of no known kind: whatever stands there.

        Lines of other processes in between begin with another prefix than the traceback's own.
        """
        begin = line.data.find(b"Traceback", line.start)
        prefix, after = line.data[line.start : begin], line.data.find(b"\n", begin) + 1
        frames = line.data[after : after + _TRACEBACK_BYTES].splitlines()[:_TRACEBACK_LINES]
        for number, raw in enumerate(frames if after else (), line.number + 1):
            body = clean(raw[len(prefix) :])
            if not raw.startswith(prefix) or not body or body[0].isspace():
                continue
            match, kind = _RAISED.fullmatch(body), KIND_BY_NAME["exception"]
            is_known = match is None or kind.pattern.match(body) is not None
            if match and not is_known and not any(k.pattern.search(body) for k in KINDS[:_LAST]):
                own = replace(line, text=body, body=body, number=number)
                self._add_exception(kind, match, own)
            return

    def _add_exception(self, kind: Kind, match: re.Match[str], line: LogLine) -> None:
        """Adds the last line of a traceback; without one, the line only mentions an error."""
        before = line.data[max(0, line.start - _TRACEBACK_BYTES) : line.start]
        # A rank's own label is printed by its last words.
        is_of_rank = line.origin.rank is not None
        if not is_of_rank and not self.tracebacks.get(line.origin) and b'  File "' not in before:
            return
        self.tracebacks[line.origin] = max(0, self.tracebacks.get(line.origin, 0) - 1)
        if (repeated := _REPEATED.match(line.body)) is not None:
            self._add_interleaved(repeated, kind, line)
            return
        name, key = match["type"].rpartition(".")[2], key_of(kind, match)
        hides = name in HIDING_ERRORS or _OTHER_ENDED.search(match["message"] or "") is not None
        if hides or name in LAUNCHER_ERRORS:
            if hides:
                self._add(KIND_BY_NAME["hidden_cause"], "", line)
            return
        if name in DATA_ERRORS and self._was_reading_data(key, line, before):
            kind = DATA_ERROR
        self._add(kind, key, line)

    def _add_interleaved(self, repeated: re.Match[str], kind: Kind, line: LogLine) -> None:
        name = repeated["type"].rpartition(".")[2]
        count = len(repeated[0]) // len(repeated["type"])
        alike = (g for (_, key), g in self.groups.items() if key.startswith(f"{name}:"))
        if (group := next(alike, None)) is not None:
            group.count += count
            group.last_order = self.first_order + line.number
            return
        for _ in range(count):
            self._add(kind, name, line)

    def _was_reading_data(self, key: str, line: LogLine, before: bytes) -> bool:
        """Whether the traceback shows that data was being read; searched once an exception."""
        if key not in self.data_errors and len(self.data_errors) < MOST_FINDINGS:
            # Lines of several ranks may be mixed; only those of the same origin are its traceback.
            last_lines = before.splitlines()[-_TRACEBACK_LINES:]
            frames = [
                body
                for origin, body in map(split_prefix, map(clean, last_lines))
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
        # Before a line says what, it may call itself a warning or less.
        group.is_mild = group.is_mild and bool(_MILD.search(line.text, 0, _MOST_KEY))
        group.last_order = order
        if len(group.origins) < MOST_ORIGINS and line.origin != Origin():
            group.origins[line.origin] = None
        if match is not None:
            add_details(group, match, with_tasks=not self._is_helper_step)
        if ended is not None:
            add_exit(group, ended)
