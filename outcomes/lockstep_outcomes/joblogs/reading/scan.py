"""One pass over one log: groups the lines that say something, in bounded memory."""

import re
from dataclasses import replace

from lockstep_outcomes.joblogs.kinds import (
    BY_NAME,
    DATA_ERROR,
    DATA_ERRORS,
    DATA_TRACES,
    HIDING_ERRORS,
    KINDS,
    LAUNCHER_ERRORS,
    Kind,
)
from lockstep_outcomes.joblogs.reading import groups
from lockstep_outcomes.joblogs.reading.clock import Clock
from lockstep_outcomes.joblogs.reading.launcher_summary import (
    SUMMARY_KINDS,
    ExitSummary,
    LauncherExit,
)
from lockstep_outcomes.joblogs.reading.literals import LONGEST_LINE, LiteralSearch, kinds_by_literal
from lockstep_outcomes.joblogs.reading.prefix import Origin, Stamp, clean, split_prefix
from lockstep_outcomes.joblogs.reading.progress import MilestoneLine, Milestones

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
_LITERALS = LiteralSearch(kinds_by_literal(KINDS))


class Scan:
    """State of reading one log; ``add`` its blocks in order.

    Args:
        name: of the file, for evidence.
        first_order: order of the file's first line among the lines of all files.
        rank: in the name of the file; None where it names none.
    """

    def __init__(
        self, name: str, clock: Clock, first_order: int = 0, rank: int | None = None
    ) -> None:
        self.name, self.clock, self.rank = name, clock, rank
        self.groups: dict[tuple[str, str], groups.LineGroup] = {}
        self.milestones = Milestones()
        self.first_stamp: Stamp | None = None
        self.origins: dict[Origin, None] = {}
        self.lines = 0
        self.size_bytes = 0
        self.tracebacks: dict[Origin, int] = {}
        self.summary = ExitSummary()
        self.data_errors: dict[str, bool] = {}
        self.first_order = first_order
        self._is_helper_step = False

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
            self.first_stamp = self.clock.first_in(data, skipped=BY_NAME["watcher"].pattern)
        counted, number, floor = 0, self.lines, 0
        for start, end, kinds in _LITERALS.lines(data):
            number += data.count(b"\n", counted, start) - data.count(b"\0\n", counted, start)
            counted = start
            text = clean(data[start : min(end, start + LONGEST_LINE)]).replace("\0", "")
            origin, body = split_prefix(text)
            self._add_line(
                groups.LogLine(text, body, origin, number + 1, data, start, floor), kinds
            )
            floor = end
        self.clock.last_before(data, len(data), floor)
        self.lines += data.count(b"\n") - extra + (not data.endswith(b"\n"))

    def _add_line(self, line: groups.LogLine, kinds: list[int]) -> None:
        if line.text.startswith(_SHELL_TRACE):
            self._add_launch(line.text)
            return
        matched = next(
            ((KINDS[p], m) for p in kinds if (m := KINDS[p].pattern.search(line.body))), None
        )
        if matched is None:
            return
        kind, match = matched
        if self._is_helper_step:
            # One task of a step beside the training: its number is not a rank of the job.
            line.origin = replace(line.origin, task=None)
        if line.origin != Origin() and len(self.origins) < groups.MOST_ORIGINS:
            self.origins[line.origin] = None
        own = self.clock.parse(line.text, is_of_job=kind.name != "watcher")
        line.stamp = own or self.clock.last_before(line.data, line.start, line.floor)
        milestone = MilestoneLine(
            name=kind.name, match=match, origin=line.origin, stamp=line.stamp, own=own,
            order=self.first_order + line.number,
        )  # fmt: skip
        if not self.milestones.add_line(milestone):
            self._add_finding(kind, match, line)

    def _add_launch(self, text: str) -> None:
        """A command that the shell traces: srun begins a step, of one task or of the job."""
        if (match := _LAUNCH.match(text)) is None:
            return
        tasks = _NUM_TASKS.search(match["arguments"])
        self._is_helper_step = tasks is not None and int(tasks[1]) == 1
        self.milestones.begin_launcher_step()

    def _add_finding(self, kind: Kind, match: re.Match[str], line: groups.LogLine) -> None:
        if kind.name == "traceback":
            if len(self.tracebacks) < groups.MOST_ORIGINS:
                self.tracebacks[line.origin] = self.tracebacks.get(line.origin, 0) + 1
        elif kind.name in SUMMARY_KINDS:
            for ended in self.summary.add_line(kind.name, match, line.origin):
                self._add(BY_NAME["summary_exit"], ended.key, line, ended=ended)
        elif kind.name == "exception":
            self._add_exception(kind, match, line)
        else:
            self._add(kind, groups.key_of(kind, match), line, match=match)

    def _add_exception(self, kind: Kind, match: re.Match[str], line: groups.LogLine) -> None:
        """Adds the last line of a traceback; without one, the line only mentions an error."""
        before = line.data[max(0, line.start - _TRACEBACK_BYTES) : line.start]
        if not self.tracebacks.get(line.origin) and b'  File "' not in before:
            return
        self.tracebacks[line.origin] = max(0, self.tracebacks.get(line.origin, 0) - 1)
        if (repeated := _REPEATED.match(line.body)) is not None:
            self._add_interleaved(repeated, kind, line)
            return
        name, key = match["type"].rpartition(".")[2], groups.key_of(kind, match)
        if name in LAUNCHER_ERRORS:
            if name in HIDING_ERRORS:
                self._add(BY_NAME["hidden_cause"], "", line)
            return
        if name in DATA_ERRORS and self._was_reading_data(key, line, before):
            kind = DATA_ERROR
        self._add(kind, key, line)

    def _add_interleaved(self, repeated: re.Match[str], kind: Kind, line: groups.LogLine) -> None:
        """Adds a line into which several processes wrote the same exception at the same time."""
        name = repeated["type"].rpartition(".")[2]
        count = len(repeated[0]) // len(repeated["type"])
        alike = (g for (_, key), g in self.groups.items() if key.startswith(f"{name}:"))
        if (group := next(alike, None)) is not None:
            group.count += count
            group.last_order = self.first_order + line.number
            return
        for _ in range(count):
            self._add(kind, name, line)

    def _was_reading_data(self, key: str, line: groups.LogLine, before: bytes) -> bool:
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
        line: groups.LogLine,
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
            group = groups.LineGroup(kind=kind, key=key, line=line, order=order, file=self.name)
            line.data = b""  # the group outlives its block
            self.groups[kind.name, key] = group
        group.count += 1
        group.last_order = order
        if len(group.origins) < groups.MOST_ORIGINS and line.origin != Origin():
            group.origins[line.origin] = None
        if match is not None:
            groups.add_details(group, match, with_tasks=not self._is_helper_step)
        if ended is not None:
            groups.add_exit(group, ended)
