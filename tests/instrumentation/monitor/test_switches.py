"""Switches change a running rank without a restart; an invalid file of switches changes nothing."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from trainer_validation.operation_values import operation_values

import lockstep
from lockstep.commands.profile import profile
from lockstep.commands.switch import switch
from lockstep.monitor.step_watch import StepWatch
from lockstep_records.files.operations import read_operations
from lockstep_records.files.switches import read_switches
from lockstep_records.page.reader import read_page


@pytest.fixture
def job(root: Path) -> Path:
    return root / "jobs" / "job-a"


def attached(root: Path) -> lockstep.LiveMonitor:
    environment = {"LOCKSTEP_JOB_ID": "job-a", "LOCKSTEP_SAMPLE_EVERY": "0"}
    monitor = lockstep.attach(root=root, environment=environment, rows=64)
    assert isinstance(monitor, lockstep.LiveMonitor)
    return monitor


def step_until(
    monitor: lockstep.LiveMonitor, is_done: Callable[[], bool], timeout_seconds: float = 20
) -> None:
    deadline_seconds = time.monotonic() + timeout_seconds
    while not is_done():
        assert time.monotonic() < deadline_seconds
        monitor.enter_phase("forward")
        torch.ones(8).sum()
        monitor.step()
        time.sleep(0.001)


def page(job: Path) -> Path:
    return job / "0" / "rank-00000.page"


def run_switch(job: Path, *options: str) -> None:
    result = CliRunner().invoke(switch, [str(job), *options])
    assert result.exit_code == 0, result.output


def test_the_switches_are_printed_in_sentences(job: Path) -> None:
    (job / "0").mkdir(parents=True)
    result = CliRunner().invoke(switch, [str(job), "--sample", "8", "--hang-timeout", "0s"])
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == [
        f"job {job.name}: the monitor is on",
        "  operations are recorded in one step of 8",
        "  hangs are not watched",
    ]
    result = CliRunner().invoke(switch, [str(job), "--off", "--hang-timeout", "2m"])
    assert "monitor is off" in result.output
    assert "a hang is 2m without progress, 20 median steps at least" in result.output


def test_sampling_is_switched_on_in_a_running_rank(root: Path, job: Path) -> None:
    monitor = attached(root)
    monitor.step()
    run_switch(job, "--sample", "8")
    operations = page(job).with_suffix(".ops")
    step_until(monitor, lambda: bool(read_operations(operations)))
    assert {row["step"] % 8 for row in operation_values(operations)} == {0}
    monitor.close()


def test_a_rank_is_switched_off_and_on_and_its_heartbeat_goes_on(root: Path, job: Path) -> None:
    monitor = attached(root)
    monitor.step()
    run_switch(job, "--off")
    step_until(monitor, lambda: not monitor.enabled)
    before = read_page(page(job))
    step_of_before = monitor.recorder.step  # as a loop that took the method into a variable
    with monitor.phase("eval"), monitor.checkpoint():
        monitor.enter_phase("forward")
    monitor.wait_ended(monitor.wait_begins(), "all_reduce", 1, 2)
    step_of_before(tokens=5)
    monitor.step(tokens=5)
    while_off = read_page(page(job))
    assert while_off.state["steps"] == before.state["steps"]
    assert while_off.state["tokens"] == 0
    assert while_off.progress_ns > before.progress_ns
    run_switch(job, "--on")
    step_until(monitor, lambda: monitor.enabled)
    monitor.step(tokens=5)
    assert read_page(page(job)).state["tokens"] == 5
    monitor.close()
    assert read_page(page(job)).phase == "done"


def test_a_rank_that_ends_while_it_is_off_says_that_it_is_done(root: Path, job: Path) -> None:
    monitor = attached(root)
    monitor.step()
    run_switch(job, "--off")
    step_until(monitor, lambda: not monitor.enabled)
    monitor.close()
    assert read_page(page(job)).phase == "done"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("{", "switches"),
        ("[]", "JSON object"),
        ('{"sample_every": -1}', "sample_every"),
        ('{"sample_every": true}', "sample_every"),
        ('{"enabled": 1}', "enabled"),
        ('{"hang_seconds": NaN}', "hang_seconds"),
        ('{"profile": {"id": "../x", "steps": 1}}', "profile.id"),
        ('{"profile": {"id": "x", "steps": 1000}}', "profile.steps"),
        ('{"profile": {"id": "x"}}', "steps"),
        ('{"profile": {"id": "x", "steps": 1, "ranks": 3}}', "profile.ranks"),
        ('{"speed": 1}', "speed"),
        ("[" * 60_000, "switches"),
        (" " * 70_000, "bytes"),
    ],
)
def test_an_invalid_file_is_refused_with_the_name_of_its_field(
    tmp_path: Path, text: str, field: str
) -> None:
    path = tmp_path / "switches.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=field):
        read_switches(path)


def test_an_invalid_file_is_logged_once_and_changes_nothing(
    root: Path, job: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = attached(root)
    (job / "switches.json").write_text('{"enabled": "no"}')
    monitor.step()
    watch = monitor.observer
    assert isinstance(watch, StepWatch)
    for _ in range(5):
        watch.poll(time.monotonic_ns())
    assert monitor.enabled
    assert [r.message for r in caplog.records if "switches" in r.message] == [
        r.message for r in caplog.records if "enabled is 'no'" in r.message
    ]
    assert len(caplog.records) == 1
    monitor.close()


def test_a_trace_of_next_steps_is_taken_and_fetched(root: Path, job: Path, tmp_path: Path) -> None:
    monitor = attached(root)
    monitor.step()
    results = []

    def run_profile() -> None:
        results.append(
            CliRunner().invoke(profile, [str(job), "--steps", "3", "--out", str(tmp_path)])
        )

    thread = threading.Thread(target=run_profile)
    thread.start()
    step_until(monitor, lambda: not thread.is_alive(), timeout_seconds=40)
    thread.join()
    assert results[0].exit_code == 0, results[0].output
    assert "held up for" in results[0].output
    (trace,) = tmp_path.glob("rank-00000.*.trace.json")
    events = json.loads(trace.read_text())["traceEvents"]
    operations = [event["name"] for event in events if event.get("cat") == "cpu_op"]
    assert operations.count("aten::ones") == 3
    assert sorted(path.suffix for path in (job / "0").iterdir()) == [
        ".jsonl",
        ".ops",
        ".page",
        ".stacks",
    ]
    monitor.close()


def test_ranks_that_are_not_on_this_node_are_refused(root: Path, job: Path) -> None:
    monitor = attached(root)
    for ranks in ("3,7", "x"):
        refused = CliRunner().invoke(profile, [str(job), "--ranks", ranks])
        assert refused.exit_code == 2
        assert "--ranks" in refused.output
    assert not (job / "switches.json").exists()
    monitor.close()
