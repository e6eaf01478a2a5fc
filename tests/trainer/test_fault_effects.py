import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from lockstep_records.events import OUT_OF_MEMORY, PREEMPTED, read_events
from lockstep_records.jobs import page_path
from lockstep_records.page.reader import read_page, read_rows
from lockstep_trainer.checkpoints.files import find_newest

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]

MODEL = ("--batch", "2", "--sequence", "32", "--layers", "2", "--width", "32", "--heads", "2")
TINY = (*MODEL, "--steps", "6", "--log-every", "1", "--eval-windows", "4", "--timeout", "30")
ALONE = {**os.environ, "LOCKSTEP": "off"}


@pytest.fixture
def memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="lockstep-test-") as folder:
        yield Path(folder)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "lockstep_trainer", *TINY, *map(str, arguments)]


def rank(*arguments: object, **environment: str) -> "subprocess.CompletedProcess[str]":
    """One rank without a launcher."""
    return subprocess.run(
        command(*arguments),
        env={**ALONE, **environment},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def job(*arguments: object, memory: Path) -> "subprocess.CompletedProcess[str]":
    """Two ranks by the launcher."""
    command = [sys.executable, "-m", "lockstep_cli.main", "train", "--nproc-per-node", "2"]
    where = ["--dir", str(memory), "--job-id", "tried"]
    return subprocess.run(
        [*command, *where, *TINY, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def fired(stderr: str) -> list[str]:
    return re.findall("^fault: .*$", stderr, re.MULTILINE)


def test_a_stopped_rank_stands_still_for_its_seconds_and_goes_on() -> None:
    stop = ("--fault", "stop:rank=0,step=3,seconds=1.5")
    told_at: dict[str, float] = {}
    with subprocess.Popen(command(*stop), env=ALONE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            told_at[line.split(" loss")[0].strip()] = time.monotonic()
    assert process.returncode == 0
    pause_seconds = told_at["lockstep: step 3"] - told_at["fault: stop rank=0 step=3"]
    assert 1.4 < pause_seconds < 5
    assert told_at["lockstep: step 6"] - told_at["lockstep: step 3"] < pause_seconds


def test_a_kill_drawn_by_the_seed_ends_its_rank_by_signal_9_once_and_the_job_goes_on(
    memory: Path,
) -> None:
    chance = ("--fault", "kill:rank=any,step=3..5", "--fault-seed", 5)
    saved = ("--checkpoint-dir", memory / "saved", "--checkpoint-every", 2)
    ended = job(*chance, *saved, "--max-restarts", 1, memory=memory)
    assert ended.returncode == 0, ended.stderr
    (told,) = fired(ended.stderr)
    (first,) = [e for e in read_events(memory / "jobs" / "tried") if e.fields.get("first")]
    assert (first.fields["signal"], first.attempt) == ("SIGKILL", 0)
    assert told == f"fault: kill rank={first.fields['rank']} step={told[-1]}"
    assert "resuming from" in ended.stderr

    again = rank(*chance)
    assert again.returncode == -signal.SIGKILL
    assert fired(again.stderr) == [f"fault: kill rank=0 step={told[-1]}"]  # there is no other rank


def test_memory_that_ran_out_is_told_as_that() -> None:
    ended = rank("--fault", "oom:rank=0,step=3")
    assert ended.returncode == OUT_OF_MEMORY
    assert fired(ended.stderr) == ["fault: oom rank=0 step=3"]
    assert "memory" in ended.stderr.splitlines()[-1]


def test_a_preempted_job_ends_before_its_last_step(memory: Path) -> None:
    ended = job("--fault", "preempt-job:rank=1,step=3", "--steps", 100_000, memory=memory)
    assert ended.returncode != 0
    assert fired(ended.stderr) == ["fault: preempt-job rank=1 step=3"]


def test_a_preempted_rank_ends_before_its_last_step() -> None:
    ended = rank("--fault", "preempt:rank=0,step=3", "--steps", 100_000)
    assert ended.returncode == PREEMPTED
    assert fired(ended.stderr) == ["fault: preempt rank=0 step=3"]


def test_harmed_checkpoints_are_passed_over_each_for_its_reason(memory: Path) -> None:
    harms = ("corrupt-checkpoint", "truncate-checkpoint", "lose-checkpoint")
    faults = [
        word
        for step, harm in zip((2, 4, 6), harms, strict=True)
        for word in ("--fault", f"{harm}:rank=0,step={step}")
    ]
    saved = ("--checkpoint-dir", memory, "--checkpoint-every", 1, "--checkpoint-keep", 9)
    ended = rank(*faults, *saved)
    assert ended.returncode == 0, ended.stderr
    newest, reasons = find_newest(memory)
    assert newest is not None
    assert newest.step == 5
    assert "step-00000006 has no readable" in reasons[0]
    for step in (2, 4):
        (memory / f"step-{step + 1:08d}").rename(memory / f"gone-{step}")
    (memory / "step-00000006").rename(memory / "gone-6")
    newest, reasons = find_newest(memory)
    assert newest is not None
    assert newest.step == 1
    assert [reason[:13] for reason in reasons] == ["step-00000004", "step-00000002"]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(tmp_path)]
    subprocess.run(mount, check=True)
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_full_disk_costs_the_checkpoints_of_its_steps_alone(tiny_disk: Path) -> None:
    full = ("--fault", "full-disk:rank=0,step=3,until=5")
    ended = rank(*full, "--checkpoint-dir", tiny_disk, "--checkpoint-every", 2)
    assert ended.returncode == 0, ended.stderr
    assert "checkpoint of step 4 could not be written" in ended.stderr
    assert "No space left on device" in ended.stderr
    saved = sorted(path.name for path in tiny_disk.glob("step-*"))
    assert saved == ["step-00000002", "step-00000006"]
    assert fired(ended.stderr) == [
        "fault: full-disk rank=0 step=3",
        "fault: full-disk rank=0 step=4",
    ]


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("wrong-rank:rank=1,told=7", "RANK 7 is outside WORLD_SIZE 2"),
        ("wrong-rank:rank=1,told=0", "RANK=0 and ROLE_RANK=1 do not agree"),
        ("wrong-world-size:rank=0,told=3", "WORLD_SIZE=3 and ROLE_WORLD_SIZE=2 do not agree"),
    ],
)
def test_a_rank_that_was_told_wrong_ends_the_job_with_a_sentence_and_exit_status_2(
    fault: str, sentence: str, memory: Path
) -> None:
    ended = job("--fault", fault, memory=memory)
    assert ended.returncode == 2
    assert ended.stderr.count(sentence) == 1
    assert "Traceback" not in ended.stderr


def test_an_environment_that_cannot_be_is_told_by_any_rank() -> None:
    ended = rank(RANK="2", WORLD_SIZE="2")
    assert ended.returncode == 2
    assert "RANK 2 is outside WORLD_SIZE 2" in ended.stderr


@pytest.mark.parametrize("text", ["boom:rank=0,step=1", "kill:rank=2,step=1", "kill:rank=0,step=7"])
def test_a_fault_that_cannot_be_ends_the_command_before_a_rank_starts(
    text: str, memory: Path
) -> None:
    ended = job("--fault", text, memory=memory)
    assert ended.returncode == 2
    assert f"--fault {text!r}: " in ended.stderr
    assert not list(memory.iterdir())


def medians(memory: Path, series: str, steps: range) -> list[float]:
    """Of each rank's page, over some steps."""
    pages = [read_page(page_path(memory, "tried", 0, number)) for number in range(2)]
    return [median(row[series] for row in read_rows(p) if row["step"] in steps) for p in pages]


def test_a_skewed_shard_costs_its_rank_time_and_tokens(memory: Path) -> None:
    skew = ("--fault", "skewed-shards:rank=1,step=11,until=end,factor=64")
    ended = job(*skew, "--steps", 20, memory=memory)
    assert ended.returncode == 0, ended.stderr
    before, after = (medians(memory, "tokens", range(a, a + 9)) for a in (2, 12))
    assert (before, after) == ([64, 64], [64, 64 * 64])
    spent = medians(memory, "forward_seconds", range(12, 21))
    assert spent[1] > 2 * spent[0]


def test_an_unbalanced_stage_makes_the_pipeline_longer(memory: Path) -> None:
    heavy = ("--fault", "unbalanced-stage:rank=1,step=11,until=end,factor=64")
    pipeline = ("--strategy", "pp", "--micro-batches", 2)
    ended = job(*heavy, *pipeline, "--steps", 20, memory=memory)
    assert ended.returncode == 0, ended.stderr
    assert len(fired(ended.stderr)) == 10
    speeds = [int(speed) for speed in re.findall(r"tokens/s (\d+)", ended.stderr)]
    # The quickest step of each kind: a busy machine makes steps longer, and never one shorter.
    assert max(speeds[1:10]) > 1.3 * max(speeds[11:])


def test_a_gradient_that_is_no_number_on_one_rank_spoils_all(memory: Path) -> None:
    ended = job("--fault", "nan-gradient:rank=1,step=3", memory=memory)
    assert ended.returncode == 0, ended.stderr
    losses = re.findall(r"^lockstep: step \d loss (\S+)", ended.stderr, re.MULTILINE)
    assert [loss == "nan" for loss in losses] == [False] * 3 + [True] * 3


def test_favoured_experts_change_the_loss_from_their_step_on(memory: Path) -> None:
    moe = ("--strategy", "ep", "--experts", 4)
    favour = ("--fault", "unbalanced-experts:rank=all,step=4,until=end,bias=50")
    healthy, ended = job(*moe, memory=memory / "a"), job(*moe, *favour, memory=memory / "b")
    assert ended.returncode == 0, ended.stderr
    one, other = (
        [float(loss) for loss in re.findall(r"step \d loss (\S+)", stderr)]
        for stderr in (healthy.stderr, ended.stderr)
    )
    assert one[:3] == other[:3]
    assert one[3] < other[3]
