"""A log made to harm its reader costs little time and memory, and is read to its end."""

import gzip
import time
import tracemalloc
from pathlib import Path

import pytest

from lockstep_outcomes.joblogs.kinds import KINDS, Kind
from lockstep_outcomes.joblogs.outcome import judge_log
from lockstep_outcomes.joblogs.prefix import clean, find_stamp, split_prefix
from lockstep_outcomes.joblogs.read import read_log
from lockstep_records.file_access.compressed import blocks

PIECES = (" ", "\x1c", "a", "a1", "1", "1 ", "1:", "(", "(a)", "*", "#", ": ", "\x1b[", "Error ")
DIGITS = "9" * 5000
LINES = (
    f"  rank      : {DIGITS} (local_rank: 0)",
    "  rank      : 999999999 (local_rank: 0)",
    "[rank999999]: Traceback (most recent call last)",
    f"  exitcode  : -{DIGITS} (pid: 1)",
    f"[W] world_size={DIGITS}",
    "world_size=999999999",
    f"srun: error: node-1: tasks {DIGITS}-{DIGITS},²: Exited with exit code 1",
    "srun: error: node-1: tasks 0-999999999: Exited with exit code 1",
    f"NVRM: Xid (PCI:0000:3b:00): {DIGITS}",
    f"process rank {DIGITS} with PID 1 on node a exited on signal {DIGITS}",
    "exiting program after 1.2.3 minutes",
    f"train_runtime: {DIGITS}",
    f"iteration 5/10 | elapsed time per iteration (ms): {DIGITS} | loss: 1",
    "step 5 loss 1 step_time: 1e999",
    f"10%|#| 1/2 [{DIGITS}:{DIGITS}<00:01",
    f"+ srun -n {DIGITS} python train.py",
    f"Watchdog caught collective operation timeout: WorkNCCL(SeqNum={DIGITS}, OpType=ALLREDUCE)",
    f"last enqueued NCCL work: {DIGITS}, last completed NCCL work: 1",
    ':::MLLOG {"key": "train_loss", "metadata": {"step": ' + "[" * 900 + "]" * 900 + "}}",
    ':::MLLOG {"key": "tracked_stats", "value": {"step_time": 1e999}, "metadata": {"step": 1e999}}',
    ':::MLLOG {"key": "run_start", "time_ms": ' + DIGITS + "}",
    "2025-99-99 99:99:99 step 1 loss 2",
    "\x1b]0;" + "x" * 20_000,
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_no_line_takes_long_to_match(kind: Kind) -> None:
    for literal in (*kind.literals, *PIECES):
        text = (literal * 4000)[:4000]
        begin = time.thread_time()
        kind.pattern.search(text)
        assert time.thread_time() - begin < 0.1, literal


def test_no_prefix_or_time_takes_long_to_find() -> None:
    for piece in (*PIECES, "step1", "[1]: ", "2020-01-01 00:00:00", "INFO ", "\x1b]"):
        begin = time.thread_time()
        text = clean((piece * 8192)[:8192].encode())
        split_prefix(text)
        find_stamp(text, 2025)
        assert time.thread_time() - begin < 0.1, piece


def test_numbers_of_any_size_end_no_reading(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text("\n".join((*LINES, *LINES, "the last line")), encoding="utf-8")
    log = read_log(path)
    judge_log(log)
    assert log.lines == 2 * len(LINES) + 1
    assert log.notes == ()
    assert (log.world_size or 0) <= 1_000_000
    assert all(rank < 1_000_000 for finding in log.findings for rank in finding.ranks)


def test_an_endless_line_costs_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "job.log.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for number in range(60):
            file.write(b"step %d loss 1 Error " % number + bytes(range(32, 127)) * 11_000)
    tracemalloc.start()
    read_log(path)
    assert tracemalloc.get_traced_memory()[1] < 80 << 20
    tracemalloc.stop()


def test_a_decompression_bomb_is_refused_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "bomb.log.gz"
    with gzip.open(path, "wb") as file:
        for _ in range(260):
            file.write(bytes(1 << 20))
    with pytest.raises(ValueError, match="expands to more than 500 times its size"):
        list(blocks(path))
