"""Attacks by kernel messages with names that a user chose, and by logs given to a report."""

import itertools
import json
import os
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING

from tenants.table import DELIVERY_SECONDS, Attack, Ground, attack, register

if TYPE_CHECKING:
    from tenants.arena import Arena

_NUMBERS = itertools.count(1000)
_XID = "NVRM: Xid (PCI:0000:{}:00): 79, pid=1, name=python, GPU has fallen off the bus."
_CGROUP = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0"


def _write(ground: Ground, *texts: str) -> None:
    """What the kernel writes for a process of the attacker, with the attacker's names in it."""
    lines = "".join(f"3,{next(_NUMBERS)},{next(_NUMBERS) * 1000},-;{text}\n" for text in texts)
    with (ground.root.parent / "kmsg").open("a", encoding="utf-8") as file:
        file.write(lines)


def _no_incident(arena: "Arena", _: str) -> str:
    """The name of a process or control group counts as no fault of a GPU or port."""
    return arena.new_incidents()


_MESSAGES: dict[str, tuple[str, Callable[[Ground], str]]] = {
    "xid_as_control_group": (
        "an out-of-memory kill in a control group named like an Xid",
        lambda _: (
            f"{_CGROUP},oom_memcg=/a/{_XID.format('9b')},task_memcg=/a/{_XID.format('9c')},task=x,pid=9,uid=4102"
        ),
    ),
    "xid_as_process": (
        "a segmentation fault of a process named like an Xid",
        lambda _: "traps: NVRM: Xid (PCI[9] general protection fault ip:7f sp:7f error:0 in x",
    ),
    "xid_in_text": (
        "a coredump message whose program name holds an Xid",
        lambda _: f"process '/home/a/{_XID.format('9d')}' started with executable stack",
    ),
    "link_as_process": (
        "a hung task named like a driver's link",
        lambda _: "INFO: task mlx5: Link down:9 blocked for more than 120 seconds.",
    ),
    "link_in_text": (
        "a program path that holds a driver's link message",
        lambda _: (
            "process '/a/mlx5_core 0000:5c:00.0 eth2: Link down' started with executable stack"
        ),
    ),
    "machine_check_as_process": (
        "a program path that holds a machine check",
        lambda _: "process '/a/mce: [Hardware Error]: Machine check events logged' started",
    ),
    "lockup_as_process": (
        "a program path that holds a lockup",
        lambda _: "process '/a/watchdog: BUG: soft lockup - CPU#1 stuck for 22s!' started",
    ),
}
for _name, (_what, _text) in _MESSAGES.items():
    register(
        Attack(
            f"kernel_{_name}",
            "logs",
            f"the kernel reports {_what}",
            lambda ground, text=_text: _write(ground, text(ground)),  # type: ignore[misc]  # its default binds the loop
            DELIVERY_SECONDS,
            _no_incident,
        )
    )


@attack("logs", seconds=DELIVERY_SECONDS)
def kernel_pid_of_a_neighbour(ground: Ground) -> None:
    """An out-of-memory kill of a process whose name is the pid of the neighbour's rank."""
    pid = ground.victim_pids[0]
    name = f"pid={pid},uid=0"
    where = "oom_memcg=/a,task_memcg=/a"
    _write(
        ground,
        f"{_CGROUP},{where},task={name},pid=999999,uid=4102",
        f"Memory cgroup out of memory: Killed process 999999 ({name}) total-vm:1kB, UID:4102",
        f"{_CGROUP},oom_memcg=/a/task=python,pid={pid},task_memcg=/a,task=x,pid=999999,uid=4102",
        f"Out of memory: Killed process 999999 (x) Killed process {pid} (python) total-vm:1kB",
    )


@attack("logs", seconds=DELIVERY_SECONDS)
def kernel_line_without_end(ground: Ground) -> None:
    """A kernel message of 20 MB, and 100,000 messages at once."""
    _write(ground, "x" * 20_000_000, *("INFO: task x:9 blocked",) * 100_000)


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
