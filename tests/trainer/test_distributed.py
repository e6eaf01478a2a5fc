import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_records.jobs import page_path
from lockstep_records.page.reader import read_page, read_rows
from lockstep_trainer.checkpoints.shards import read_all_tensors

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]

TINY = ("--batch", "2", "--sequence", "32", "--layers", "2", "--width", "32", "--heads", "2")


@pytest.fixture
def memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="lockstep-test-") as folder:
        yield Path(folder)


def run(*arguments: object, memory: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lockstep_cli.main", "train", "--nproc-per-node", "2"]
    where = ["--dir", str(memory), "--job-id", "tried"]
    return subprocess.run(
        [*command, *where, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_two_ranks_learn_more_than_the_frequencies_of_bytes(memory: Path) -> None:
    shape = ("--layers", 2, "--width", 64, "--steps", 100)
    ended = run(*shape, "--summary", memory / "summary.json", memory=memory)
    assert ended.returncode == 0, ended.stderr
    told = json.loads((memory / "summary.json").read_text())
    assert told["loss"] < told["unigram_entropy"]
    assert told["ranks"] == 2
    pages = [read_page(page_path(memory, "tried", 0, rank)) for rank in range(2)]
    assert [page.phase for page in pages] == ["done", "done"]
    assert [len(read_rows(page)) for page in pages] == [100, 100]


def test_two_ranks_resume_to_the_very_bits_of_an_uninterrupted_run(memory: Path) -> None:
    every = (*TINY, "--steps", 20, "--checkpoint-every", 10)
    whole, resumed = memory / "whole", memory / "resumed"
    assert run(*every, "--checkpoint-dir", whole, memory=memory / "a").returncode == 0
    shutil.copytree(whole / "step-00000010", resumed / "step-00000010")
    shutil.copytree(whole / "step-00000020", resumed / "step-00000020")
    (resumed / "step-00000020" / "__1_0.distcp").write_bytes(b"harmed")
    ended = run(*every, "--checkpoint-dir", resumed, "--resume", memory=memory / "b")
    assert ended.returncode == 0, ended.stderr
    assert "passed over checkpoint step-00000020" in ended.stderr
    one, other = (read_all_tensors(folder / "step-00000020") for folder in (whole, resumed))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_slow_backward_is_seen_in_the_backward_of_its_rank_alone(memory: Path) -> None:
    slow = ("--slow-rank", 1, "--slow-ms", 100, "--slow-from", 11, "--slow-phase", "backward")
    assert run(*TINY, "--steps", 20, *slow, memory=memory).returncode == 0
    spent = []
    for rank in range(2):
        rows = read_rows(read_page(page_path(memory, "tried", 0, rank)))[10:]
        spent.append(
            {phase: sum(row[f"{phase}_seconds"] for row in rows) / 10 for phase in STEP_PHASES}
        )
    assert max(spent[1], key=spent[1].__getitem__) == "backward"
    assert max(spent[0], key=spent[0].__getitem__) == "sync"
    assert spent[1]["backward"] > 0.1 > spent[0]["backward"]


@contextmanager
def started(num_ranks: int, log: Path, *more: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Ranks with no launcher above them, of which the first has told of a step."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = (*TINY, "--steps", "1000000", "--log-every", "1", "--timeout", "5", *more)
    ranks = []
    for rank in range(num_ranks):
        named = {"RANK": rank, "WORLD_SIZE": num_ranks, "LOCAL_RANK": rank, "MASTER_PORT": port}
        told = {name: str(value) for name, value in named.items()}
        with log.open("ab") as stderr:
            ranks.append(
                subprocess.Popen(
                    [sys.executable, "-m", "lockstep_trainer", *flags],
                    env={**os.environ, **told, "MASTER_ADDR": "127.0.0.1", "LOCKSTEP": "off"},
                    stderr=stderr,
                )
            )
    try:
        until = time.monotonic() + 60
        while "step 3 " not in log.read_text():
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.05)
        yield ranks
    finally:
        for process in ranks:
            process.kill()
            process.wait()


@pytest.mark.parametrize("fate", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize(
    ("num_ranks", "flags"),
    [(2, ""), (4, "--strategy hybrid --fsdp 2 --tp 2"), (4, "--strategy hybrid --dp 2 --pp 2")],
    ids=["ddp", "fsdp x tp", "dp x pp"],
)
def test_ranks_whose_peer_is_gone_end_within_the_time_limit(
    tmp_path: Path, num_ranks: int, flags: str, fate: signal.Signals
) -> None:
    log = tmp_path / "log"
    with started(num_ranks, log, *flags.split(), "--batch", "4") as (*survivors, victim):
        victim.send_signal(fate)
        begin = time.monotonic()
        assert all(rank.wait(timeout=30) != 0 for rank in survivors)
        assert time.monotonic() - begin < 5 + 10
