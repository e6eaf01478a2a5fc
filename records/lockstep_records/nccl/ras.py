"""Answers of the status socket (RAS) of NCCL 2.24 to 2.31 and of RCCL, in text and JSON.

An answer of one process covers its whole job. What it counts are launches by the host of five
functions: no completions, no sends and receives, nothing that a captured graph replays. Anybody may
have written it, so it is measured before it is decoded, and no name or number is taken unchecked.
"""

import re
from typing import Annotated

import msgspec

from lockstep_records.nccl.ras_answer import (
    MAX_COMMUNICATORS,
    MAX_RANKS,
    Absence,
    Answer,
    Communicator,
    LargeAnswerError,
    MissingRank,
    RankLaunches,
    RasError,
    State,
    parse_version,
    read_process,
)
from lockstep_records.nccl.ras_text import TEXT_HEAD, parse_text

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
