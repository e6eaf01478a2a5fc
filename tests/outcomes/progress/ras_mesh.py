"""Answers of NCCL's status socket, written from a line of counts, in each format of each release.

``A: 5 5 4 x | B[2,3]: 7/1 7/1`` are two communicators: of all ranks in order, and of ranks 2 and 3.
A number is of all-reduces, a second one behind a slash of all-gathers; x is silent, d dead, - not
in the communicator; i behind a number is being initialised, e ended.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_COMMUNICATOR = re.compile(r"(\w+)(?:\[([\d,]+)\])?: (.*)")
_FUNCTIONS = ("AllReduce", "AllGather")
_ABSENT = {
    word: {"unresponsive": silent, "considered_dead": dead}
    for word, silent, dead in (("x", True, False), ("d", True, True), ("-", False, False))
}
_HEAD = """NCCL version {version} compiled with CUDA 13.0
CUDA runtime version 13000, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          8            1          8        8

Communicators... (0.000s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
"""


@dataclass(frozen=True, slots=True)
class Line:
    """A communicator: its hash, and global rank and word of each of its ranks."""

    name: str
    ranks: tuple[tuple[int, str], ...]

    @property
    def numbers(self) -> dict[int, dict[str, int]]:
        """Counts by rank in the communicator."""
        return {
            number: dict(zip(_FUNCTIONS, map(int, word.strip("ie").split("/")), strict=False))
            for number, (_, word) in enumerate(self.ranks)
            if word not in _ABSENT
        }


def lines_of(text: str) -> list[Line]:
    """The communicators of a line of counts."""
    found = []
    for part in text.split(" | "):
        match = _COMMUNICATOR.fullmatch(part)
        assert match, part
        words = match[3].split()
        ranks = map(int, match[2].split(",")) if match[2] else range(len(words))
        name = f"{int.from_bytes(match[1].encode()):016x}"
        found.append(Line(name, tuple(zip(ranks, words, strict=True))))
    return found


def as_json(
    text: str,
    time: str = "2026-11-26 16:00:00",
    *,
    comma: bool = True,
    pids: Sequence[int] = range(1000, 2000),
    host: str = "10.0.0.1",
) -> str:
    """The answer as JSON; without the comma as 2.28.7 and 2.28.9 write it."""
    communicators = [_communicator(line, pids, host) for line in lines_of(text)]
    document = {
        "nccl_version": "2.29.2" if comma else "2.28.9",
        "timestamp": time,
        "communicators_count": len(communicators),
        "communicators": communicators,
        "ras": {"collection_time_sec": 0.0, "timeouts_count": 0},
    }
    written = json.dumps(document, indent=2) + "\n"
    if comma:
        return written
    head, key, rest = written.rpartition('"missing_ranks"')
    return head + key + re.sub(r'("nvml_dev": \d+),', r"\1", rest)


def _communicator(line: Line, pids: Sequence[int], host: str) -> dict[str, Any]:
    ranks: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for number, (device, word) in enumerate(line.ranks):
        is_absent = word in _ABSENT
        rank = {
            "rank": number,
            "host": host,
            "pid": pids[device],
            "cuda_dev": 0,
            "nvml_dev": device,
            "status": _ABSENT[word] if is_absent else _status(word),
        }
        counts = {} if is_absent else {"collective_counts": line.numbers[number]}
        ranks[is_absent].append(rank | counts)
    return {
        "hash": f"0x{int(line.name, 16):x}",
        "secondary_hash": "0x1:0x2",
        "size": len(line.ranks),
        "ranks_count": len(ranks[False]),
        "missing_ranks_count": len(ranks[True]),
        "ranks": ranks[False],
        "missing_ranks": ranks[True],
    }


def _status(word: str) -> dict[str, Any]:
    ended = word.endswith("e")
    return {
        "init_state": 7 if word.endswith("i") else 0,
        "async_error": 0,
        "finalize_called": ended,
        "destroy_flag": ended,
        "abort_flag": False,
    }


def as_text(text: str, *, version: str = "2.28.9", summed: bool = False) -> str:
    """The answer as text: only what differs, and of it only outliers by name."""
    table, errors, warnings = "", "", ""
    for index, line in enumerate(lines_of(text)):
        table += (
            f"{index:5d}  {1:8d}  {1:8d}  {8:>8}  {len(line.ranks):8d}  {8:8d}   RUNNING  ...\n"
        )
        head = f"#{index}-0 ({line.name})"
        silent = [number for number, (_, word) in enumerate(line.ranks) if word in {"x", "d"}]
        if silent:
            errors += f"{head} INCOMPLETE\n  Missing communicator data from {len(silent)} ranks\n"
            errors += "".join(f"  Rank {n} -- {_where(line, n)}\n" for n in silent) + "\n"
        warnings += _mismatches(head, line, summed=summed)
    table = table.replace("...", "MISMATCH" if warnings else "OK")
    return (
        f"{_HEAD.format(version=version)}{table}\nErrors\n======\n\n{errors}"
        f"Warnings\n========\n\n{warnings}\n"
    )


def _mismatches(head: str, line: Line, *, summed: bool) -> str:
    written = ""
    names = ("collective",) if summed else _FUNCTIONS
    for function in names:
        counts = {
            number: sum(own.values()) if summed else own.get(function, 0)
            for number, own in line.numbers.items()
        }
        if len(set(counts.values())) < 2:
            continue
        written += f"  Communicator ranks have different {function} operation counts\n"
        for count, number in Counter(counts.values()).most_common():
            did = f"launched up to operation {count}" if count else "not launched any operations"
            ranks = [rank for rank, own in counts.items() if own == count]
            if number > 1:
                written += f"  {number} ranks have {did}\n"
            if number == 1 or number <= len(line.ranks) / 4:
                has = f" has {did}" if number == 1 else ""
                written += "".join(f"  Rank {n}{has} -- {_where(line, n)}\n" for n in ranks)
        written += "\n"
    return f"{head} MISMATCH\n{written}" if written else ""


def _where(line: Line, number: int) -> str:
    device = line.ranks[number][0]
    return f"GPU 0 (NVML {device}) managed by process {1000 + device} on node 10.0.0.1"
