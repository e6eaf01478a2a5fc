import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest
from click.testing import CliRunner

from lockstep_cli.main import group
from lockstep_records.events.event import OUT_OF_MEMORY
from lockstep_records.files.jobs import page_path
from lockstep_records.page.reader import read_page, read_rows
from lockstep_trainer.checkpoints.files import find_newest

from .. import jobs
from ..jobs import JOB_ID, Outcome, started

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]

TINY = f"{jobs.TINY} --steps 6 --timeout 30s"


def run_rank(arguments: str, folder: Path, **environment: str) -> Outcome:
    """One rank without a launcher and without a monitor."""
    arguments = f"{TINY} {arguments}"
    return jobs.run_ranks(arguments, folder=folder, environment={"LOCKSTEP": "off"} | environment)


def run_pair(arguments: str, folder: Path) -> Outcome:
    """Two ranks without a launcher."""
    return jobs.run_ranks(f"{TINY} {arguments}", folder=folder, num_ranks=2)


def announced(output: str) -> list[str]:
    return re.findall("^fault: .*$", output, re.MULTILINE)


@pytest.mark.timing
def test_a_stopped_rank_pauses_for_its_duration_and_goes_on(memory: Path) -> None:
    """Times are those at which a line is seen in the log, which is polled every 5 ms."""
    stop = f"{TINY} --fault stop:rank=0,step=3,duration=1500ms"
    seen_at: dict[str, float] = {}
    with started(stop, folder=memory, environment={"LOCKSTEP": "off"}) as ((rank,), log):
        while rank.exitcode is None:
            for line in log.read_text().splitlines():
                seen_at.setdefault(line.split(" loss")[0].strip(), time.monotonic())
            rank.join(0.005)
    assert rank.exitcode == 0
    pause_seconds = seen_at["lockstep: step 3"] - seen_at["fault: stop rank=0 step=3"]
    assert 1.4 < pause_seconds < 5
    assert seen_at["lockstep: step 6"] - seen_at["lockstep: step 3"] < pause_seconds


def test_a_kill_drawn_by_the_seed_ends_its_rank_by_signal_9(memory: Path) -> None:
    chance = "--fault kill:rank=any,step=3..5 --fault-seed 5"
    pair = run_pair(chance, memory / "pair")
    (line,) = announced(pair.output)
    victim = pair.codes.index(-signal.SIGKILL)
    assert line == f"fault: kill rank={victim} step={line[-1]}"
    assert line[-1] in "345"

    single = run_rank(chance, memory / "single")
    assert single.codes == (-signal.SIGKILL,)
    # The draw of the step is the same; of one rank, rank 0 is the only one to draw.
    assert announced(single.output) == [f"fault: kill rank=0 step={line[-1]}"]


def test_exhausted_memory_is_reported_as_that(memory: Path) -> None:
    outcome = run_rank("--fault oom:rank=0,step=3", memory)
    assert outcome.codes == (OUT_OF_MEMORY,)
    assert announced(outcome.output) == ["fault: oom rank=0 step=3"]
    last_line = outcome.output.splitlines()[-1]
    assert "lockstep: rank 0 on cpu ran out of host memory, asking for" in last_line


def test_damaged_checkpoints_are_passed_over_each_for_its_reason(memory: Path) -> None:
    saved = memory / "saved"
    kinds = ("corrupt-checkpoint", "truncate-checkpoint", "lose-checkpoint")
    faults = [
        f"--fault {kind}:rank=0,step={step}" for step, kind in zip((2, 4, 6), kinds, strict=True)
    ]
    keep_all = f"--checkpoint-dir {saved} --checkpoint-every 1 --checkpoint-keep 9"
    outcome = run_rank(f"{' '.join(faults)} {keep_all}", memory)
    assert outcome.codes == (0,), outcome.output
    newest, reasons = find_newest(saved)
    assert newest is not None
    assert newest.step == 5
    assert "step-00000006 has no readable" in reasons[0]
    for step in (2, 4):
        (saved / f"step-{step + 1:08d}").rename(saved / f"gone-{step}")
    (saved / "step-00000006").rename(saved / "gone-6")
    newest, reasons = find_newest(saved)
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


def test_a_full_disk_costs_the_checkpoints_of_its_steps_only(tiny_disk: Path, memory: Path) -> None:
    full = "--fault full-disk:rank=0,step=3,until=5"
    outcome = run_rank(f"{full} --checkpoint-dir {tiny_disk} --checkpoint-every 2", memory)
    assert outcome.codes == (0,), outcome.output
    assert "checkpoint of step 4 could not be written" in outcome.output
    assert "No space left on device" in outcome.output
    saved = sorted(path.name for path in tiny_disk.glob("step-*"))
    assert saved == ["step-00000002", "step-00000006"]
    assert announced(outcome.output) == [
        "fault: full-disk rank=0 step=3",
        "fault: full-disk rank=0 step=4",
    ]


def test_a_wrong_rank_is_reported_and_nobody_is_waited_for(memory: Path) -> None:
    torchrun = {"RANK": "1", "ROLE_RANK": "1", "WORLD_SIZE": "2", "ROLE_WORLD_SIZE": "2"}
    outcome = run_rank("--fault wrong-rank:rank=1,value=0", memory, **torchrun)
    assert outcome.codes == (2,)
    assert outcome.output.count("RANK=0 and ROLE_RANK=1 do not agree") == 1


@pytest.mark.parametrize("text", ["boom:rank=0,step=1", "kill:rank=2,step=1", "kill:rank=0,step=7"])
def test_an_impossible_fault_ends_the_command_before_a_rank_starts(text: str, memory: Path) -> None:
    command = ["train", "--nproc-per-node", "2", "--dir", str(memory), *TINY.split()]
    result = CliRunner().invoke(group, [*command, "--fault", text])
    assert result.exit_code == 2
    assert f"--fault {text!r}: " in " ".join(result.stderr.split())
    assert not list(memory.iterdir())


def medians(folder: Path, series: str, steps: range) -> list[float]:
    """Of each rank's page, over some steps."""
    pages = [read_page(page_path(folder, JOB_ID, 0, rank)) for rank in range(2)]
    return [
        median((row | row["phase_seconds"])[series] for row in read_rows(p) if row["step"] in steps)
        for p in pages
    ]


@pytest.mark.timing
def test_a_skewed_shard_costs_its_rank_time_and_tokens(memory: Path) -> None:
    skew = "--fault skewed-shards:rank=1,step=11,until=end,factor=64"
    outcome = run_pair(f"{skew} --steps 20", memory)
    assert outcome.codes == (0, 0), outcome.output
    before, after = (medians(memory, "tokens", range(a, a + 9)) for a in (2, 12))
    assert (before, after) == ([64, 64], [64, 64 * 64])
    spent = medians(memory, "forward", range(12, 21))
    assert spent[1] > 2 * spent[0]
