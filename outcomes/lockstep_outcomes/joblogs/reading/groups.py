"""Lines of a log that say the same, gathered in bounded memory."""

import re
from dataclasses import dataclass, field

from lockstep_outcomes.joblogs.kinds import Kind
from lockstep_outcomes.joblogs.model import Line
from lockstep_outcomes.joblogs.reading.launcher_summary import LauncherExit
from lockstep_outcomes.joblogs.reading.prefix import Origin, Stamp

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
    for name in ("node", "node2", "node3"):
        # The node of a cancellation is the one that reports it, not one that failed.
        if fields.get(name) and group.kind.name != "slurm_cancelled":
            _add_node(group, fields[name].strip(".,"))
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
