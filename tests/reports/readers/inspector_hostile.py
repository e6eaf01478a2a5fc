"""Folders of Inspector files as a hostile or broken job may leave them, by NCCL's documents alone.

Rank 2 of four is 40 ms late in each step; who reads such a folder names that rank or nobody.
"""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

RANKS, STEPS, LATE, OTHER = 4, 60, 2, 3
_START_US, _STEP_US, _LATE_US, _TAKES_US = 1_790_000_000_000_000, 200_000, 40_000, 180
Line = dict[str, Any]


def operation(rank: int, step: int, **fields: object) -> Line:
    """A whole line with its traces: all arrive together but for one, 40 ms late in each step."""
    late_us = _LATE_US if rank == LATE else 300 * ((rank * 7 + step * 5) % 4)
    begin = _START_US + step * _STEP_US + late_us
    end = _START_US + step * _STEP_US + _LATE_US + _TAKES_US
    kernel = {
        "channel_id": 0,
        **{f"kernel_{name}_ts": end for name in ("stop", "record")},
        "kernel_start_ts": begin + 90,
    }
    perf: Line = {
        "coll": "AllReduce",
        "coll_sn": step,
        "coll_msg_size_bytes": 1 << 20,
        "coll_exec_time_us": end - begin,
        "coll_timing_source": "kernel_gpu",
        "coll_algobw_gbs": (1 << 20) / (end - begin) / 1e3,
        "coll_busbw_gbs": 1.5 * (1 << 20) / (end - begin) / 1e3,
        "event_trace_sn": {"coll_start_sn": 1, "coll_stop_sn": 2, "kernel_events": []},
        "event_trace_ts": {
            "coll_start_ts": begin,
            "coll_stop_ts": begin + 6,
            "kernel_events": [kernel],
        },
    }
    return {
        "header": {"id": "0x5f3c21", "rank": rank, "n_ranks": RANKS, "nnodes": 1},
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "git_rev": "",
            "rec_mechanism": "nccl_profiler_interface",
            "dump_timestamp_us": end + 1000,
            "hostname": "n1",
            "pid": 100 + rank,
        },
        "coll_perf": perf | fields,
    }


def _keep(_rank: int, _step: int, line: Line) -> Line:
    return line


def _write(files: Sequence[Path], change: Callable[[int, int, Line], Line | str] = _keep) -> None:
    for rank in range(RANKS):
        lines = (change(rank, step, operation(rank, step)) for step in range(STEPS))
        text = "".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines)
        files[rank].write_text(text)


def _half_lines(files: Sequence[Path]) -> None:
    """Each file ends in half a line, and two halves are glued together in its middle."""
    _write(files, lambda _, step, line: json.dumps(line)[:200] if step == STEPS // 2 else line)
    for rank in range(RANKS):
        with files[rank].open("a") as file:
            file.write(json.dumps(operation(rank, STEPS))[: 100 + 50 * rank])


def _long_line(files: Sequence[Path]) -> None:
    """A healthy rank's file begins with a line of 50 MB."""
    _write(files)
    lines = files[1].read_text()
    files[1].write_text('{"header":"' + "x" * (50 << 20) + '"}\n' + lines)


def _many_files(files: Sequence[Path]) -> None:
    """20,000 names that look like those of ranks, and hold nothing."""
    _write(files)
    for number in range(20_000):
        path = files[0].with_name(f"n1-pid{10_000_000 + number}.log")
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))


def _links(files: Sequence[Path]) -> None:
    """Names of ranks that lead to somebody else's file, to no end, and in a circle."""
    _write(files)
    folder = files[0].parent
    secret = folder.parent / "secret"
    secret.write_text(json.dumps(operation(0, 0, coll="SECRET")) + "\nSECRET\n")
    files[4].symlink_to(secret)
    (folder / "n1-pid10000001.log").symlink_to("/dev/zero")
    (folder / "n1-pid10000002.log").symlink_to(folder)
    os.link(secret, folder / "n1-pid10000003.log")


def _fifo(files: Sequence[Path]) -> None:
    """The name of a rank is a pipe, at which whoever opens it waits; another's is a folder."""
    _write(files)
    os.mkfifo(files[4])
    files[4].with_name("n1-pid10000000.log").mkdir()


def _other_user(files: Sequence[Path]) -> None:
    """Another user has put a file there, by which a healthy rank is late by seconds."""
    _write(files)
    lines = (operation(3, step, coll_exec_time_us=1) for step in range(STEPS))
    path = files[0].with_name("n1-pid1.log")
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if os.getuid() == 0:
        os.chown(path, 12345, 12345)


def _strings(files: Sequence[Path]) -> None:
    """One rank writes its numbers as strings, another its words as numbers."""

    def change(rank: int, step: int, line: Line) -> Line:
        if rank == 1:
            line["header"] |= {"rank": str(rank), "n_ranks": "4"}
            line["coll_perf"] |= {"coll_sn": str(step), "coll_exec_time_us": "180"}
        if rank == OTHER:
            line["header"] |= {"id": 7, "comm_name": ["dp"]}
            line["metadata"] |= {"hostname": {"a": 1}, "pid": True}
            line["coll_perf"] |= {"coll": 12}
        return line

    _write(files, change)


def _negative(files: Sequence[Path]) -> None:
    """A healthy rank's numbers are negative or huge; another's at times."""

    def change(rank: int, step: int, line: Line) -> Line:
        if rank == 0:
            line["coll_perf"]["coll_sn"] = -step if step % 3 else 1 << 70
            line["header"]["n_ranks"] = (-4, 10**12, 4)[step % 3]
        if rank == 1 and step % 4 == 0:
            line["header"]["rank"] = (-1, 1 << 40)[step % 8 == 0]
            line["coll_perf"]["coll_msg_size_bytes"] = -(1 << 62)
        return line

    _write(files, change)


def _clocks(files: Sequence[Path]) -> None:
    """The clocks of all healthy ranks step: back an hour, forward a minute, back to 1970."""
    steps = {0: -3_600_000_000, 1: 60_000_000, 3: -_START_US}

    def change(rank: int, step: int, line: Line) -> Line:
        shift = steps.get(rank, 0) if step >= STEPS // 2 else 0
        trace = line["coll_perf"]["event_trace_ts"]
        line["metadata"]["dump_timestamp_us"] += shift
        for each in (trace, *trace["kernel_events"]):
            each.update({k: v + shift for k, v in each.items() if k.endswith("_ts")})
        return line

    _write(files, change)


def _versions(files: Sequence[Path]) -> None:
    """Each rank writes another version: one with heads of batches, one of RCCL."""

    def change(rank: int, _step: int, line: Line) -> Line | str:
        version = ("v4.0", "v4.2", "v4.4", "v5.0")[rank]
        line["metadata"]["inspector_output_format_version"] = version
        if version == "v4.2":
            line["coll_perf"] |= {"coll_algo": "RING", "coll_proto": "unknown"}
        if version == "v5.0":
            line["coll_perf"]["graphCaptured"] = False
        return _with_head(line, 1) if version == "v4.4" else line

    _write(files, change)


def _with_head(line: Line, num_records: int) -> str:
    stats = {"coll_records": num_records, "coll_dropped_total": 0, "p2p_records": 0}
    head = {key: line[key] for key in ("header", "metadata")} | {"dump_stats": stats}
    return f"{json.dumps(head)}\n{json.dumps({'coll_perf': line['coll_perf']})}"


def _two_jobs(files: Sequence[Path]) -> None:
    """Two jobs of the same ranks on one node; only in the first is a rank late."""
    _write(files)
    for rank in range(RANKS):
        lines = [operation(0 if rank == LATE else rank, step) for step in range(STEPS)]
        for line in lines:
            line["header"] |= {"id": "0xabc", "rank": rank}
            line["metadata"]["pid"] = 300 + rank
        text = "".join(json.dumps(line) + "\n" for line in lines)
        files[0].with_name(f"n1-pid{10_000_000 + rank}.log").write_text(text)


def _not_numbers(files: Sequence[Path]) -> None:
    """Durations that are no numbers, infinite, negative, missing, and beyond every float."""
    words = ("NaN", "Infinity", "-5", "null", "1e400", "-1e308", '"\\u0000"', "9" * 5000)

    def change(rank: int, step: int, line: Line) -> str:
        if rank == 1 and step % 3 == 0:
            line["coll_perf"] |= {"coll_exec_time_us": "WORD", "coll_busbw_gbs": "WORD"}
        return json.dumps(line).replace('"WORD"', words[step // 3 % len(words)])

    _write(files, change)


def _deep(files: Sequence[Path]) -> None:
    """Lines of 100,000 brackets, bytes that are no text, a million zeros, and hostile names."""
    _write(files)
    name = operation(1, 1, coll="AllReduce\x1b[31m\n<script>")
    junk = (b"[" * 100_000, b'{"a":' * 100_000, bytes(1_000_000), b"\xff\xfe\x00")
    lines = (*junk, json.dumps(name).encode(), files[1].read_bytes())
    files[1].write_bytes(b"\n".join(lines))


def _no_head(files: Sequence[Path]) -> None:
    """A rank of version 4.4 whose batches have lost their heads, or count more than they hold."""

    def change(rank: int, step: int, line: Line) -> Line | str:
        if rank != 1:
            return line
        line["metadata"]["inspector_output_format_version"] = "v4.4"
        with_head = _with_head(line, 10**9)
        return with_head.partition("\n")[2] if step % 2 else with_head

    _write(files, change)


FOLDERS: dict[str, Callable[[Sequence[Path]], None]] = {
    function.__name__[1:]: function
    for function in (
        *(_half_lines, _long_line, _many_files, _links, _fifo, _other_user, _strings, _negative),
        *(_clocks, _versions, _two_jobs, _not_numbers, _deep, _no_head),
    )
}
"""What each writes, by its name, given the paths of four ranks' files and a fifth process's."""
