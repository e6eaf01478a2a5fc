"""Steps that state their duration and no clock count, and their time is part of the run."""

from pathlib import Path

import pytest

from lockstep_outcomes.joblogs.outcome import judge_log
from lockstep_outcomes.joblogs.read import read_log

CLOCKED = "[2025-03-04 10:{:02}:{:02}] step {} | loss 3.1 | step time 2.0 s\n"
CLOCKLESS = "step {} | loss 3.1 | step time {:.1f} s\n"


def write_log(folder: Path, *, timed: int, untimed: int, took: float, end: str = "") -> Path:
    """So many steps of 2 s with a clock from 10:00:02 on, then as many as wanted without."""
    lines = [CLOCKED.format(*divmod(2 * step, 60), step) for step in range(1, timed + 1)]
    lines += [CLOCKLESS.format(timed + step, took) for step in range(1, untimed + 1)]
    path = folder / "train.log"
    path.write_text("".join(lines) + end)
    return path


@pytest.mark.parametrize("took", [2.0, 30.0])
def test_steps_without_a_clock_after_a_clocked_part_are_counted_and_take_their_time(
    tmp_path: Path, took: float
) -> None:
    path = write_log(tmp_path, timed=10, untimed=20, took=took)
    log = read_log(path)
    assert len(log.step_seconds) == 30
    assert log.step_seconds[-20:].tolist() == pytest.approx([took] * 20)
    assert log.last_step == 30


def test_a_job_that_is_cancelled_while_such_steps_go_on_had_just_made_progress(
    tmp_path: Path,
) -> None:
    end = "slurmstepd: error: *** JOB 7 ON gpu-07 CANCELLED AT 2025-03-04T10:10:24 ***\n"
    path = write_log(tmp_path, timed=10, untimed=20, took=30.0, end=end)
    incident = judge_log(read_log(path))
    # Ten steps of 2 s and twenty of 30 s ended at 10:10:20.
    assert incident.seconds_after_last_progress == pytest.approx(4.0, abs=0.1)
    assert incident.outcome == "cancelled"
