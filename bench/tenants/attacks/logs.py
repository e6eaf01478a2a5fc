"""Attacks by logs given to a report."""

import json
import os
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING

from tenants.table import Attack, Ground, register

if TYPE_CHECKING:
    from tenants.arena import Arena


class _Bomb:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch /tmp/lockstep-tenants-bomb",)


def _megabytes() -> bytes:
    return b"\x80\x02" + b"(" + b"K\x01" * 10 + b"l" + b"2" * 2_000_000 + b"."


def _repeated() -> bytes:
    """A pickle of lists that hold the list before ten times, thirty levels deep."""
    body = b"\x80\x04]\x94"
    for level in range(30):
        body += b"]\x94(" + b"h" + bytes([level]) + (b"h" + bytes([level])) * 9 + b"e"
    return body + b"."


_NCCL = "node-7:11:11 [0] NCCL INFO comm 0x1 rank 0 nranks {0} cudaDev 0 busId 1 - Init COMPLETE\n"
_LOGS: dict[str, tuple[str, str, Callable[[], bytes]]] = {
    "world_of_a_billion": (
        "nccl.log",
        "an NCCL log of 10^9 ranks",
        lambda: _NCCL.format(10**9).encode() * 20,
    ),
    "torchrun_of_a_billion": (
        "torchrun.log",
        "a torchrun log of 10^9 ranks",
        lambda: b"[rank999999999]: RuntimeError: x\nworld_size: 1000000000\n" * 20,
    ),
    "controls": (
        "job.log",
        "a log with terminal control characters in every line",
        lambda: "[rank3]: RuntimeError: \x1b]0;x\x07\x1b[2J\x9b31m boom\n".encode() * 50,
    ),
    "line_without_end": (
        "long.log",
        "a log of one line of 50 MB",
        lambda: b"[rank3]: " * 6_000_000,
    ),
    "pickle_that_runs": (
        "dump.pkl",
        "a pickle that calls a program",
        lambda: pickle.dumps(_Bomb()),
    ),
    "pickle_of_memos": ("dump_0", "a pickle that repeats itself 10^30 times", _repeated),
    "pickle_of_duplicates": ("dump_1", "a pickle of two million repetitions", _megabytes),
    "mlperf_of_digits": (
        "mlperf.log",
        "an MLPerf log with integers of 5,000 digits",
        lambda: b':::MLLOG {"key": "epoch_num", "value": ' + b"9" * 5000 + b', "time_ms": 1e999}\n',
    ),
    "json_depth": ("trace.json", "a trace of 100,000 levels", lambda: b"[" * 100_000),
    "flight_recorder": (
        "nccl_trace_rank_0.json",
        "a Flight Recorder dump with hostile numbers",
        lambda: json.dumps(
            {"version": "2.9", "entries": [{"seq_id": 10**300, "time_created_ns": -1e308}] * 100}
        ).encode(),
    ),
}


def _file(name: str, body: Callable[[], bytes]) -> Callable[[Ground], None]:
    def act(ground: Ground) -> None:
        folder = ground.job()
        (folder / name).write_bytes(body())

    return act


def _reported(name: str) -> Callable[["Arena", str], str]:
    return lambda arena, _: arena.report_on(arena.root / "jobs" / f"log_of_{name}" / _LOGS[name][0])


for _name, (_file_name, _what, _body) in _LOGS.items():
    register(
        Attack(
            f"log_of_{_name}",
            "logs",
            f"lockstep report is given {_what}",
            _file(_file_name, _body),
            0.0,
            _reported(_name),
        )
    )
