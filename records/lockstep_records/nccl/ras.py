"""Answers of the status socket (RAS) of NCCL 2.24 to 2.31 and of RCCL, in text and JSON.

An answer of one process covers its whole job. What it counts are launches by the host of five
functions: no completions, no sends and receives, nothing that a captured graph replays. Anybody may
have written it, so it is measured before it is decoded, and no name or number is taken unchecked.
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from lockstep_records.nccl.ras_answer import (
    MAX_COMMUNICATORS,
    MAX_FUNCTIONS,
    MAX_RANKS,
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


MAX_BYTES = 128 << 20
"""Of answers that lie in files: JSON of 16,384 ranks in ten communicators each has 90 MB."""
_MAX_NAME = 64
_BRACES_PER_RANK = 4
"""At most: of a rank, its status, its counts and, at worst, a communicator of its own."""
_MAX_COUNT = (1 << 63) - 1
_JSON_HEAD = re.compile(r'^\{\s*"nccl_version"', re.MULTILINE)
_GREETING = "SERVER PROTOCOL "
_REFUSAL = re.compile(r"^ERROR: ([ -~]{1,200})$", re.MULTILINE)
_SUMMARY = "\nJob summary\n==="


def is_answer(head: str) -> bool:
    """Whether a text begins with an answer, or with what a client was told before one."""
    is_text = TEXT_HEAD.search(head) and _SUMMARY in head
    return bool(is_text or _JSON_HEAD.search(head) or head.startswith(_GREETING))


def read_answers(data: bytes, max_ranks: int = MAX_RANKS) -> tuple[Answer, ...]:
    """The answers in what a client has saved, in their order; other lines are passed over.

    An answer has at most ``max_ranks`` in all communicators, which bound time and memory too.

    Raises:
        LargeAnswerError: one has more ranks, or what would take as much.
        RasError: there is none, or one ends early or is not as NCCL writes it.
    """
    if len(data) > MAX_BYTES:
        raise LargeAnswerError(f"the answer is longer than {MAX_BYTES:,} bytes; ask for text")
    # All that counts is ASCII, and no byte takes more than one in this encoding.
    text = data.decode("latin-1").replace("\r\n", "\n")
    begins = sorted(
        match.start() for head in (TEXT_HEAD, _JSON_HEAD) for match in head.finditer(text)
    )
    if not begins:
        refusal = _REFUSAL.search(text)
        words = f"it was refused: {refusal[1]}" if refusal else "there is none"
        raise RasError(f"it holds no answer of NCCL's status socket: {words}")
    ends = [*begins[1:], len(text)]
    parts = (text[begin:end] for begin, end in zip(begins, ends, strict=True))
    return tuple(
        _read_json(part, max_ranks) if part[0] == "{" else parse_text(part, max_ranks)
        for part in parts
    )


_Number = Annotated[int, msgspec.Meta(ge=-1, le=_MAX_COUNT)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=_MAX_COUNT)]
_RankNumber = Annotated[int, msgspec.Meta(ge=0, lt=MAX_RANKS)]
_Name = Annotated[str, msgspec.Meta(max_length=_MAX_NAME)]
_Function = Annotated[str, msgspec.Meta(pattern="^[A-Za-z][A-Za-z0-9_]{0,63}\\Z")]


class _Status(msgspec.Struct):
    init_state: _Number = 0
    async_error: _Number = 0
    finalize_called: bool = False
    destroy_flag: bool = False
    abort_flag: bool = False
    unresponsive: bool = False
    considered_dead: bool = False


class _Rank(msgspec.Struct):
    rank: _RankNumber
    host: str = ""  # dropped where it is not an address
    pid: _Number = -1
    nvml_dev: _Number = -1
    status: _Status = msgspec.field(default_factory=_Status)
    collective_counts: msgspec.Raw = msgspec.Raw(b"{}")


class _Communicator(msgspec.Struct):
    hash: Annotated[str, msgspec.Meta(pattern="^(0x)?[0-9a-fA-F]{1,16}\\Z")]
    size: _RankNumber
    ranks: list[_Rank] = []
    missing_ranks: list[_Rank] = []


class _Collection(msgspec.Struct):
    timeouts_count: _Count = 0


class _Document(msgspec.Struct):
    nccl_version: _Name
    communicators: Annotated[list[_Communicator], msgspec.Meta(max_length=MAX_COMMUNICATORS)]
    timestamp: _Name = ""
    ras: _Collection = msgspec.field(default_factory=_Collection)


_decoder = msgspec.json.Decoder(_Document)
_counts_decoder = msgspec.json.Decoder(dict[_Function, _Count])
_MAX_COUNTS_BYTES = 4096
# 2.28.7 and 2.28.9 write no comma behind the last number of a missing rank.
_NO_COMMA = re.compile(r'("nvml_dev": ?-?\d{1,10})(\s{1,64}"status")')
_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_STARTING_STATE = 7


def _read_json(text: str, max_ranks: int) -> Answer:
    if text.count("{") > _BRACES_PER_RANK * max_ranks + _BRACES_PER_RANK:
        raise LargeAnswerError(f"the answer has over {max_ranks:,} ranks; ask for text")
    end = text.rfind("}") + 1
    try:
        document = _decoder.decode(_NO_COMMA.sub(r"\1,\2", text[:end]))
        communicators = tuple(map(_communicator, document.communicators))
    except RecursionError as error:
        raise RasError("the answer is nested too deeply") from error
    except msgspec.ValidationError as error:
        raise RasError(f"the answer is not as NCCL writes it: {error}") from error
    except msgspec.DecodeError as error:
        raise RasError(f"the JSON is damaged or ends early: {error}; ask again") from error
    if sum(len(each.ranks) + len(each.missing) for each in communicators) > max_ranks:
        raise LargeAnswerError(f"the answer has over {max_ranks:,} ranks; ask for text")
    return Answer(
        version=parse_version(document.nccl_version),
        time=document.timestamp if _TIME.fullmatch(document.timestamp) else "",
        communicators=communicators,
        num_communicators=len(communicators),
        world_size=max((each.size for each in communicators), default=0),
        num_timeouts=document.ras.timeouts_count,
    )


def _communicator(record: _Communicator) -> Communicator:
    name = record.hash.removeprefix("0x").lower().zfill(16)
    numbers = {each.rank for each in (*record.ranks, *record.missing_ranks)}
    if len(numbers) < len(record.ranks) + len(record.missing_ranks):
        raise RasError(f"communicator {name} has a rank twice")
    if numbers and max(numbers) >= record.size:
        raise RasError(f"communicator {name} of {record.size:,} ranks has rank {max(numbers):,}")
    return Communicator(
        name=name,
        size=record.size,
        ranks=tuple(
            RankLaunches(
                rank=each.rank,
                process=read_process(each.host, each.pid, each.nvml_dev),
                counts=_read_counts(each.collective_counts),
                state=_state(each.status),
                error=_error(each.status),
            )
            for each in record.ranks
        ),
        missing=tuple(
            MissingRank(
                rank=each.rank,
                process=read_process(each.host, each.pid, each.nvml_dev),
                absence=_absence(each.status),
            )
            for each in record.missing_ranks
        ),
    )


def _read_counts(data: msgspec.Raw) -> dict[str, int]:
    if len(bytes(data)) > _MAX_COUNTS_BYTES:
        raise RasError("a rank has counts of more functions than NCCL has")
    return _counts_decoder.decode(data)


def _state(status: _Status) -> State:
    if status.abort_flag:
        return "aborted"
    if status.finalize_called or status.destroy_flag:
        return "ending"
    if {status.init_state, status.async_error} - {0, _STARTING_STATE}:
        return "failed"
    return "starting" if status.init_state == _STARTING_STATE else "running"


_ERRORS = {
    1: "unhandled CUDA error", 2: "system error", 3: "internal error", 4: "invalid argument",
    5: "invalid usage", 6: "remote process error",
}  # fmt: skip


def _error(status: _Status) -> str:
    codes = {status.async_error, status.init_state} - {0, _STARTING_STATE}
    return "; ".join(f"error {code}, {_ERRORS.get(code, 'unknown')}" for code in sorted(codes))


def _absence(status: _Status) -> Absence:
    if status.considered_dead:
        return "dead"
    return "silent" if status.unresponsive else "left"
