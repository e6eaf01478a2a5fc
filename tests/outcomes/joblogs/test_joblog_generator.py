"""Made logs of every launcher, zone, framework and ending are judged by their truth."""

import gzip
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from lockstep_outcomes.joblogs.outcome import Incident, judge_log
from lockstep_outcomes.joblogs.read import read_log

BENCH = Path(__file__).parents[3] / "bench" / "joblogs"
sys.path.insert(0, str(BENCH))
confusion: Any = importlib.import_module("confusion")

START = "STARTING TIMING RUN AT 2024-03-05 10:00:00 AM\n"
MLLOG = ':::MLLOG {{"time_ms": {}, "key": "{}", "value": null, "metadata": {}}}\n'
STEP = " iteration {:8d}/ 5000 | elapsed time per iteration (ms): {:.1f} | lm loss: 2.0E+00 |\n"


def judged(folder: Path, text: str) -> Incident:
    path = folder / "job.log"
    path.write_text(text)
    return judge_log(read_log(path))


def mllog(seconds: float, key: str, metadata: str = "{}") -> str:
    return MLLOG.format(int(seconds * 1000), key, metadata)


@pytest.mark.parametrize("first", [1, pytest.param(501, marks=pytest.mark.release)])
def test_made_logs_are_judged_by_their_truth(first: int) -> None:
    num_logs = 57 if first == 1 else 500
    table, sentences = confusion.confusion(first, num_logs)
    assert not sentences
    assert len(table) == len(confusion.ENDINGS) + 1


@pytest.mark.parametrize("hours", [-7, 0, 5.5, 9])
def test_the_zone_comes_from_start_and_end_markers(tmp_path: Path, hours: float) -> None:
    """Neither a late line nor a closing line with the start's time changes it."""
    utc = 1709632800.0 - hours * 3600  # 10:00:00 of the local clock
    text = START + mllog(utc + 5, "init_start") + mllog(utc + 65, "run_start")
    text += mllog(utc + 600, "eval_stop") + "[2024-03-05 10:02:00] a line that was buffered\n"
    text += mllog(utc + 1265, "run_stop", '{"status": "success"}')
    text += "ENDING TIMING RUN AT 2024-03-05 10:21:15 AM\n"
    text += "RESULT,BERT,,1200,somebody,2024-03-05 10:00:00 AM\n" * 8
    incident = judged(tmp_path, text)
    assert (incident.outcome, incident.startup_seconds, incident.run_seconds) == (
        "succeeded", 60.0, 1200.0,
    )  # fmt: skip
    assert incident.seconds_after_last_progress == pytest.approx(10)
    assert incident.wall_seconds == pytest.approx(1270)


def test_local_times_that_nothing_relates_to_others_are_left_out(tmp_path: Path) -> None:
    text = "".join(
        mllog(1709632800 + 60 * n, "eval_stop") + f"[2024-03-05 1{(7 * n) % 9}:30:00] line\n"
        for n in range(9)
    )
    path = tmp_path / "job.log"
    path.write_text(text + "RuntimeError: bad\n")
    log = read_log(path)
    assert log.last_progress == 1709632800 + 480
    assert log.notes == () or "left out" in log.notes[0]


def test_steps_without_a_time_count_from_the_last_line_that_has_one(tmp_path: Path) -> None:
    text = "[2024-03-05 10:00:00] start\n" + "".join(STEP.format(n, 2000.0) for n in range(1, 101))
    path = tmp_path / "job.log"
    path.write_text(text)
    log = read_log(path)
    assert log.last_progress == pytest.approx(1709632800 + 200)
    assert judge_log(log).run_seconds == pytest.approx(200)


@pytest.mark.parametrize("are_sums", [False, True])
def test_values_of_blocks_are_seen_by_steps_and_times(tmp_path: Path, *, are_sums: bool) -> None:
    lines = []
    for block in range(1, 31):
        second = 20 * block
        value = 20_000.0 if are_sums else 2000.0
        stamp = f"[2024-03-05 10:{second // 60:02d}:{second % 60:02d}]"
        lines.append(f" {stamp}" + STEP.format(10 * block, value))
    path = tmp_path / "job.log"
    path.write_text("".join(lines))
    log = read_log(path)
    assert sorted(log.step_seconds)[15] == pytest.approx(2.0)
    assert log.block_means >= 29


def test_a_local_rank_is_no_rank_of_the_job_where_nodes_may_be_several(tmp_path: Path) -> None:
    error = "[default3]:Traceback (most recent call last):\n[default3]:ValueError: bad\n"
    victims = "".join(
        f"[default{n}]:Connection closed by remote peer\n" for n in (0, 1, 2, 4, 5, 6, 7)
    )
    assert judged(tmp_path, "world_size: 64\n" + error + victims).ranks == ()
    assert judged(tmp_path, "world_size: 8\n" + error + victims).ranks == (3,)
    assert judged(tmp_path, error + victims).ranks == ()


def test_a_launch_error_of_a_step_before_the_training_is_no_failure(tmp_path: Path) -> None:
    error = "srun: error: Invalid --container-mounts argument: data:/data\n"
    incident = judged(tmp_path, error)
    assert (incident.outcome, incident.cause) == ("failed", "launch_failure")
    steps = "".join(STEP.format(n, 2000.0) for n in range(1, 9))
    assert judged(tmp_path, error + steps + "Training completed\n").outcome == "succeeded"


def test_several_runs_in_a_folder_are_refused_and_the_logs_of_one_are_read(tmp_path: Path) -> None:
    def steps(first: int, hour: int) -> str:
        return "".join(
            f"[2024-03-05 {hour}:00:{n:02d}]" + STEP.format(first + n, 1000.0) for n in range(30)
        )

    (tmp_path / "a.log").write_text(steps(1, 10) + "Training completed\n")
    (tmp_path / "b.log").write_text(steps(1, 12) + "Training completed\n")
    with pytest.raises(ValueError, match=r"2 runs \(a.log, b.log\)"):
        read_log(tmp_path)
    # An attempt goes on from the last checkpoint of the one before.
    (tmp_path / "a.log").write_text(steps(1, 10))
    (tmp_path / "b.log").write_text(steps(21, 12) + "Training completed\n")
    assert judge_log(read_log(tmp_path)).outcome == "succeeded"


def test_a_hidden_cause_says_how_to_see_it(tmp_path: Path) -> None:
    text = STEP.format(1, 1000.0) + "Error executing job with overrides: ['a=b']\n"
    incident = judged(tmp_path, text)
    assert (incident.outcome, incident.cause, incident.blame) == ("failed", "exit", "unknown")
    assert "HYDRA_FULL_ERROR=1" in incident.reason
    later = "".join(STEP.format(n, 1000.0) for n in range(2, 9))
    assert judged(tmp_path, text + later).outcome == "unknown"


def test_an_exception_that_ranks_write_into_each_other_counts_for_each(tmp_path: Path) -> None:
    text = "world_size: 4\n" + "Traceback (most recent call last):\n" * 3
    text += "FileNotFoundError: [Errno 2] No such file or directory: '/x'\n"
    text += "FileNotFoundErrorFileNotFoundError: : [Errno 2] No such file: '/x'[Errno 2] No\n"
    incident = judged(tmp_path, text)
    assert (incident.outcome, incident.blame) == ("failed", "workload")


def test_a_compressed_log_is_judged_as_its_text(tmp_path: Path) -> None:
    _, log = confusion.made_log(7)
    path = tmp_path / "job.log.gz"
    path.write_bytes(gzip.compress("\n".join(log.lines).encode()))
    assert judge_log(read_log(path)).outcome == log.truth.outcome
