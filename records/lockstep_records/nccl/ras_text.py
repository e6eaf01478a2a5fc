"""Reads an answer of NCCL's status socket in text, which names only ranks that differ."""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from lockstep_records.nccl.ras_answer import (
    MAX_COMMUNICATORS,
    MAX_FUNCTIONS,
    Absence,
    Answer,
    Communicator,
    Crowd,
    LargeAnswerError,
    MissingRank,
    ProcessDevice,
    RankLaunches,
    RasError,
    State,
    parse_version,
    read_process,
)

TEXT_HEAD = re.compile(r"^[NR]CCL version (\S{1,60}) compiled with [^\n]{1,200}$", re.MULTILINE)
# The table of groups: comms, nodes, ranks per node, size, ranks, status, errors.
_GROUP = re.compile(
    r" *(\d{1,6}) +(\d{1,6}) +\d{1,8} +[\d-]{1,20} +(\d{1,8}) +\d{1,9} +[A-Z]+ +[A-Z,]+ *"
)
_HEADING = re.compile(r"(?:#(\d{1,6})-\d{1,6} \(([0-9a-f]{1,16})\) )?([A-Z]{2,12})")
_DIFFERENT = re.compile(r"  Communicator ranks have different (\w{1,40}) operation counts")
_LAUNCHED = r"(?:has|have) (?:launched up to operation (?P<number>\d{1,19})|not launched any.*?)"
_CROWD = re.compile(rf"  (?P<ranks>\d{{1,8}}) ranks {_LAUNCHED}")
_STATES_OF_RANKS = re.compile(r"  \d{1,8} ranks have status ([A-Z]{4,8})")
_NAMED = re.compile(
    rf"  Rank (?P<rank>\d{{1,8}})"
    rf"(?P<single> {_LAUNCHED}| has status (?P<status>[A-Z]{{4,8}})"
    r"| reported (?P<error>[ -~]{1,60}?))?"
    r" -- (?:GPU (?P<cuda>\d{1,4})(?: \(NVML (?P<nvml>\d{1,4})\))?"
    r" managed by process (?P<pid>\d{1,10}) on node (?P<host>\S{1,60})|\[.*)"
)
_PROCESS = re.compile(
    r"  Process (?P<pid>\d{1,10}) on node (?P<host>\S{1,60}) managing GPUs? (?P<cuda>\d{1,4})"
    r"(?:[\d,]{0,400}| \(NVML (?P<nvml>\d{1,4})[\d,]{0,400}\))"
)
_MISSING = re.compile(r"  The missing ranks?: (\d{1,8}(?:, ?\d{1,8}){0,99})")
_LINES_PER_RANK, _OTHER_LINES = 8, 1000
_TIMEOUTS = re.compile(r"  Encountered (\d{1,9}) communication timeout.*")
_STATES: dict[str, State] = {
    "INIT": "starting", "RUNNING": "running", "FINALIZE": "ending", "ABORT": "aborted",
}  # fmt: skip


@dataclass(slots=True)
class _TextCommunicator:
    """What a text says of a communicator, gathered line by line.

    Attributes:
        function: that the lines are about; empty where they are about the states of ranks.
        crowd: function or state, launches and size of the ranks that the last line counts; those
            that are named in the lines behind it are taken out of it.
    """

    group: int
    function: str = ""
    crowd: list[Any] = field(default_factory=list)
    counts: dict[int, dict[str, int]] = field(default_factory=dict)
    states: dict[int, State] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    processes: dict[int, ProcessDevice] = field(default_factory=dict)
    missing: dict[int, Absence] = field(default_factory=dict)
    crowds: list[list[Any]] = field(default_factory=list)


def parse_text(text: str, max_ranks: int) -> Answer:
    """The answer that begins with this text's first line, of at most so many named ranks.

    Raises:
        RasError: it ends early, or exceeds a bound.
    """
    # A line names one rank, or lists several with commas.
    if text.count("\n") + text.count(",") > _LINES_PER_RANK * max_ranks + _OTHER_LINES:
        raise LargeAnswerError(f"the answer has more lines than {max_ranks:,} ranks take")
    head = TEXT_HEAD.match(text)
    assert head is not None
    parts = re.split(r"\n(?:Errors|Warnings)\n={6,8}\n", text)
    # The last line of an answer that was cut may stand anywhere.
    if len(parts) != 3 or not text.endswith("\n"):  # noqa: PLR2004  # the tables, errors, warnings
        raise RasError("the answer ends early; ask again")
    groups = [match.groups() for line in parts[0].split("\n") if (match := _GROUP.fullmatch(line))]
    sizes = {int(group): int(size) for group, _, size in groups}
    largest = max(sizes.values(), default=0)
    num_largest = sum(int(count) for _, count, size in groups if int(size) == largest)
    found, silent, num_timeouts = _gather(parts[1].split("\n") + parts[2].split("\n"))
    communicators = _communicators(found, silent, sizes, max_ranks)
    of_ranks = {rank.process.pid for each in communicators for rank in each.missing}
    others = [pair for pair in silent.items() if pair[0].pid not in of_ranks]
    if others and not groups:
        missing = (MissingRank(rank=n, process=p, absence=a) for n, (p, a) in enumerate(others))
        communicators.append(Communicator(name="", size=0, missing=tuple(missing)))
    return Answer(
        version=parse_version(head[1]),
        communicators=tuple(communicators),
        num_communicators=sum(int(count) for _, count, _ in groups),
        world_size=largest if num_largest == 1 else 0,
        num_timeouts=num_timeouts,
        is_text=True,
    )


_Silent = dict[ProcessDevice, Absence]
"""Processes that a text names by themselves, as silent or dead."""


def _gather(lines: list[str]) -> tuple[dict[str, _TextCommunicator], _Silent, int]:
    """Communicators by name, processes that do not answer, and the number of time-outs."""
    found: dict[str, _TextCommunicator] = {}
    silent: _Silent = {}
    num_timeouts, kind = 0, ""
    current: _TextCommunicator | None = None
    for line in lines:
        if heading := _HEADING.fullmatch(line):
            group, name, kind = heading.groups()
            current = None
            if name:
                current = found.setdefault(name.zfill(16), _TextCommunicator(int(group)))
                current.function, current.crowd = "", []
        elif current is not None:
            _take_line(current, kind, line)
        elif process := _PROCESS.fullmatch(line):
            key = read_process(process["host"], process["pid"], process["nvml"] or process["cuda"])
            silent[key] = "dead" if kind == "DEAD" else "silent"
        elif timeouts := _TIMEOUTS.fullmatch(line):
            num_timeouts = int(timeouts[1])
        if len(found) > MAX_COMMUNICATORS:
            raise RasError(f"the answer has over {MAX_COMMUNICATORS:,} communicators")
    return found, silent, num_timeouts


def _communicators(
    found: dict[str, _TextCommunicator], silent: _Silent, sizes: dict[int, int], max_ranks: int
) -> list[Communicator]:
    dead = {(each.host, each.pid) for each, absence in silent.items() if absence == "dead"}
    for record in found.values():
        if len(record.missing) == len(silent) == 1:  # before 2.25 only the process had a name
            record.processes.setdefault(next(iter(record.missing)), next(iter(silent)))
    communicators, num_left = list[Communicator](), max_ranks
    for name, record in found.items():
        communicators.append(_join_lines(name, sizes.get(record.group, 0), record, dead, num_left))
        num_left -= len(communicators[-1].members)
    if num_left < 0:
        raise LargeAnswerError(f"the answer has over {max_ranks:,} ranks")
    return communicators


def _take_line(record: _TextCommunicator, kind: str, line: str) -> None:
    if different := _DIFFERENT.fullmatch(line):
        record.function = different[1]
    elif crowd := _CROWD.fullmatch(line):
        record.crowd = [record.function, int(crowd["number"] or 0), int(crowd["ranks"])]
        record.crowds.append(record.crowd)
    elif states := _STATES_OF_RANKS.fullmatch(line):
        record.crowd = [states[1], 0, 0]
    elif missing := _MISSING.fullmatch(line):  # before 2.25
        record.missing |= dict.fromkeys(map(int, missing[1].split(",")), "silent")
    elif named := _NAMED.fullmatch(line):
        _take_rank(record, kind, named)


def _take_rank(record: _TextCommunicator, kind: str, named: re.Match[str]) -> None:
    rank, is_single = int(named["rank"]), named["single"] is not None
    if named["pid"]:
        device = named["nvml"] or named["cuda"]
        record.processes[rank] = read_process(named["host"], named["pid"], device)
    if kind == "INCOMPLETE":
        record.missing[rank] = "silent"
    elif kind == "ERROR":
        record.states[rank] = "failed"
        record.errors[rank] = (named["error"] or "").lower()
    elif record.function:
        launched = int(named["number"] or 0)
        if not is_single and record.crowd:
            launched = record.crowd[1]
            record.crowd[2] -= 1
        record.counts.setdefault(rank, {})[record.function] = launched
    elif (state := named["status"] or (record.crowd and record.crowd[0])) == "NOCOMM":
        record.missing[rank] = "left"
    elif state:
        record.states[rank] = _STATES.get(state, "running")


def _join_lines(
    name: str, size: int, record: _TextCommunicator, dead: set[tuple[str, int]], num_left: int
) -> Communicator:
    _name_the_rest(size, record, num_left)

    def process_of(rank: int) -> ProcessDevice:
        return record.processes.get(rank, ProcessDevice())

    def absence(rank: int, default: Absence) -> Absence:
        process = process_of(rank)
        return "dead" if (process.host, process.pid) in dead else default

    named = sorted({*record.counts, *record.states} - record.missing.keys())
    return Communicator(
        name=name,
        size=size,
        ranks=tuple(
            RankLaunches(
                rank=rank,
                process=process_of(rank),
                counts=record.counts.get(rank, {}),
                state=record.states.get(rank, "running"),
                error=record.errors.get(rank, ""),
            )
            for rank in named
        ),
        missing=tuple(
            MissingRank(rank=rank, process=process_of(rank), absence=absence(rank, why))
            for rank, why in sorted(record.missing.items())
        ),
        crowds=tuple(Crowd(*crowd) for crowd in record.crowds if crowd[2] > 0),
    )


def _name_the_rest(size: int, record: _TextCommunicator, num_left: int) -> None:
    """Gives the ranks of a crowd their numbers where all others of the communicator have names."""
    functions = Counter(crowd[0] for crowd in record.crowds if crowd[2] > 0)
    if len(functions) > MAX_FUNCTIONS:
        raise RasError(f"a communicator has over {MAX_FUNCTIONS} functions")
    for crowd in record.crowds:
        function, launched, num_ranks = crowd
        if not 0 < num_ranks <= num_left or functions[function] > 1:
            continue
        of_function = {rank for rank, counts in record.counts.items() if function in counts}
        highest = max((record.counts[rank][function] for rank in of_function), default=0)
        others = of_function | record.missing.keys()
        if launched < highest and num_ranks == size - sum(rank < size for rank in others):
            crowd[2] = 0
            for rank in set(range(size)) - others:
                record.counts.setdefault(rank, {})[function] = launched
