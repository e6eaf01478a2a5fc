"""What other sources say becomes events: Slurm's accounting, MLPerf logs, a trace of spot nodes."""

import gzip
import os
import subprocess
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lockstep_ledger.importers import sacct
from lockstep_ledger.importers.sacct import events_of_job
from lockstep_ledger.importers.scheduler_events import read_mlperf
from lockstep_outcomes.joblogs.read import read_log
from lockstep_outcomes.slurm import COLUMNS, NoAccountingError, ask_sacct, ended_state
from lockstep_records.events.event import Event, check_event

FIXTURES = Path(__file__).parents[2] / "fixtures"
NOW = 1_900_000_000.0
read_sacct = partial(sacct.read_sacct, cluster="east")


def checked(events: Iterable[Event]) -> list[Event]:
    """The events, each a valid document, in an order in which no job ends before it starts."""
    found = list(events)
    for event in found:
        assert check_event(event.document(), now_seconds=NOW) == event
    assert len({event.id for event in found}) == len(found)
    return found


def slurm(name: str) -> list[bytes]:
    path = FIXTURES / "slurm-gcm" / name
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return data.splitlines()


def fields_of(events: list[Event], kind: str, **parts: Any) -> dict[str, Any]:
    [event] = [
        event
        for event in events
        if event.kind == kind and all(getattr(event, name) == part for name, part in parts.items())
    ]
    return event.fields


@pytest.mark.parametrize(
    "name",
    [
        "sample-sacct-output.txt.gz",
        "sample-sacct-output-invalid-utf8.txt",
        "sample-sacct-multiple-multiline.txt",
        "sample-sacct-running-output.txt",
    ],
)
def test_awkward_tables_of_slurm_become_valid_events_the_same_ones_each_time(name: str) -> None:
    events = checked(read_sacct(slurm(name)))
    assert events
    again = list(read_sacct(slurm(name)))
    assert [event.id for event in again] == [event.id for event in events]


def table(*rows: str) -> list[str]:
    return ["JobID|State|ExitCode|Submit|Start|End|AllocTRES|Timelimit|User|Partition", *rows]


def test_a_running_job_has_no_end_and_its_later_end_adds_to_the_same_job() -> None:
    start = "2026-01-01T00:00:00|2026-01-01T00:10:00"
    running = table(f"7|RUNNING|0:0|{start}|Unknown|gres/gpu:h100=8,node=1|1-02:00:00|ada|gpu")
    ended = table(
        f"7|COMPLETED|0:0|{start}|2026-01-01T03:00:00|gres/gpu:h100=8,node=1|1-02:00:00|ada|gpu"
    )
    first, second = checked(read_sacct(running)), checked(read_sacct(ended))
    assert [event.kind for event in second] == ["job_submitted", "job_started", "job_finished"]
    assert [event.id for event in first] == [event.id for event in second][:2]
    started = fields_of(second, "job_started")
    assert (started["num_gpus"], started["gpu_model"], started["time_limit_seconds"]) == (
        8, "h100", 93_600.0,
    )  # fmt: skip
    assert (started["user"], started["queue"], started["source"]) == ("ada", "gpu", "slurm")
    waited = second[1].time - second[0].time
    assert waited == 600


@pytest.mark.parametrize(
    ("state", "exit_code", "outcome", "cause"),
    [
        ("FAILED", "1:0", "failed", "exit"),
        ("FAILED", "75:0", "preempted", "preemption"),
        ("FAILED", "139:0", "failed", "segfault"),
        ("FAILED", "0:9", "failed", "killed"),
        ("FAILED", "76:0", "failed", "host_oom"),
        ("FAILED", "127:0", "failed", "launch_failure"),
        ("TIMEOUT", "0:15", "time_limit", "time_limit"),
        ("OUT_OF_ME+", "0:125", "failed", "host_oom"),
        ("PREEMPTED", "0:15", "preempted", "preemption"),
        ("NODE_FAIL", "1:0", "failed", "node_failure"),
        ("Something new", "0:0", "unknown", "unknown"),
    ],
)
def test_the_exit_status_of_the_script_tells_what_failed_does_not(
    state: str, exit_code: str, outcome: str, cause: str
) -> None:
    row = f"7|{state}|{exit_code}|2026-01-01T00:00:00|2026-01-01T00:10:00|2026-01-01T01:00:00||||"
    end = fields_of(checked(read_sacct(table(row))), "job_finished")
    assert (end["outcome"], end["cause"]) == (outcome, cause)


def test_a_script_that_goes_on_after_a_failed_step_tells_the_status_of_that_step() -> None:
    lines = [
        "JobID|State|ExitCode|DerivedExitCode|Submit|Start|End",
        "7|COMPLETED|0:0|3:0|2026-01-01T00:00:00|2026-01-01T00:10:00|2026-01-01T01:00:00",
        "8|FAILED|1:0|3:0|2026-01-01T00:00:00|2026-01-01T00:10:00|2026-01-01T01:00:00",
    ]
    ends = [each.fields for each in checked(read_sacct(lines)) if each.kind == "job_finished"]
    assert [(end["outcome"], end["exit_code"]) for end in ends] == [("succeeded", 3), ("failed", 1)]
    # The signal of a requeue is in the newest row too, and says nothing of its run.
    requeued = "7|REQUEUED|0:0|0:15|2026-01-01T00:00:00|2026-01-01T00:00:00|2026-01-01T00:09:00"
    lines = [lines[0], requeued, lines[1].replace("3:0", "0:15")]
    ends = [each.fields for each in checked(read_sacct(lines)) if each.kind == "job_finished"]
    assert ends[-1]["exit_code"] == 0


SACCT = """#!/bin/sh
echo "$TZ $SLURM_TIME_FORMAT $*" > "$0.call"
while [ "$1" != --delimiter ]; do shift; done
sed "s/|/$2/g" << 'END'
JobID|State|Submit|Start|End|JobName|
7|COMPLETED|1795436200|1795436260|1795436300|a|
END
"""


def events_of_period() -> list[Event]:
    return [event for job in ask_sacct(("--jobs", "7")) for event in events_of_job(job, "east")]


@pytest.fixture(name="program")
def _program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "sacct"
    program.write_text(SACCT)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TZ", "Europe/Berlin")
    return program


def test_sacct_is_run_in_utc_with_a_delimiter_that_nobody_can_guess(program: Path) -> None:
    delimiters = set()
    for _ in range(2):
        events = checked(events_of_period())
        assert [(event.kind, event.time) for event in events] == [
            ("job_submitted", 1795436200.0), ("job_started", 1795436260.0),
            ("job_finished", 1795436300.0),
        ]  # fmt: skip
        call = Path(f"{program}.call").read_text()
        assert call.startswith("UTC %s --allusers --duplicates --allocations --parsable ")
        assert call.endswith("--jobs 7\n")
        assert f"--format {','.join(COLUMNS)} " in call
        delimiters.add(call.split()[call.split().index("--delimiter") + 1])
    assert len(delimiters) == 2
    assert min(map(len, delimiters)) > 16


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'error: Connection refused' >&2; exit 1", "status 1, error: Connection refused"),
        ("exit 0", "status 0, no table"),
    ],
)
def test_an_accounting_that_does_not_answer_is_no_empty_period(
    program: Path, script: str, words: str
) -> None:
    program.write_text(f"#!/bin/sh\n{script}\n")
    with pytest.raises(subprocess.SubprocessError, match=words):
        events_of_period()


def test_a_slurm_that_stores_no_accounting_is_named(program: Path) -> None:
    program.write_text("#!/bin/sh\necho 'Slurm accounting storage is disabled' >&2; exit 1\n")
    with pytest.raises(NoAccountingError, match="accounting"):
        events_of_period()


@pytest.mark.parametrize(
    ("job_id", "last_sign_seconds", "state"),
    [
        ("7", 1795436280.0, "COMPLETED"),
        ("7", 1795436309.0, "COMPLETED"),
        ("7", 1795436500.0, ""),  # of another run
        ("my-job", 1795436280.0, ""),
    ],
)
def test_a_report_learns_the_state_of_the_run_with_the_last_sign(
    program: Path, job_id: str, last_sign_seconds: float, state: str
) -> None:
    assert ended_state(job_id, last_sign_seconds) == state
    program.write_text("#!/bin/sh\nexit 1\n")
    assert not ended_state(job_id, last_sign_seconds)


@pytest.mark.parametrize("name", ["a\x1bb", "a\x00b", "x" * 5000, "\ud800", "\u202e"])
def test_no_name_keeps_a_job_from_being_heard_of(name: str) -> None:
    header = "JobID|State|Submit|Start|End|JobName"
    lines = [header, f"7|COMPLETED|10|20|30|{name}"]
    assert [event.kind for event in checked(read_sacct(lines))] == [
        "job_submitted", "job_started", "job_finished",
    ]  # fmt: skip


def log(folder: str, name: str) -> Path:
    [path] = [path for path in (FIXTURES / folder).iterdir() if name in path.name]
    return path


STEPS = {
    "n304": (2432, 318.0, 3571.4, 273, 12.701),
    "Cisco": (64, None, None, 3430, 0.720),
    "h200_n128": (None, 917.0, None, None, None),
    "n1452": (11616, 832.0, 207.1, None, None),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_run_of_mlperf_is_imported_with_its_times(name: str) -> None:
    ranks, startup_seconds, run_seconds, num_steps, median = STEPS[name]
    path = log("mlperf-steps", name)
    events = checked(read_mlperf(path, "east"))
    assert fields_of(events, "job_finished")["outcome"] == "succeeded"
    totals = fields_of(events, "goodput")
    world_size = totals["num_ranks"]
    if ranks is not None:
        assert world_size == ranks
    seconds = {state: value / world_size for state, value in totals["rank_seconds"].items()}
    if startup_seconds is not None:
        assert seconds["startup"] == pytest.approx(startup_seconds, abs=1)
    if run_seconds is not None:
        assert seconds["productive"] == pytest.approx(run_seconds, abs=0.1)
    steps = read_log(path).step_seconds
    if num_steps is not None:
        assert len(steps) == num_steps
        assert sorted(steps)[num_steps // 2] == pytest.approx(median, abs=0.0015)
    begin, end = (next(e.time for e in events if e.kind == kind) for kind in (
        "job_started", "job_finished"))  # fmt: skip
    assert sum(seconds.values()) == pytest.approx(end - begin, abs=0.01)
