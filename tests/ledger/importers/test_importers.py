"""What other sources say becomes events: Slurm, MLPerf logs and a trace of spot nodes."""

import gzip
import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from lockstep_ledger.importers import sacct
from lockstep_ledger.importers.mlperf import read_mlperf
from lockstep_ledger.importers.node_trace import read_node_trace
from lockstep_ledger.importers.sacct import read_sacct, run_sacct
from lockstep_records.event_check import check_event
from lockstep_records.events import Event
from lockstep_records.joblogs.read import read_log

FIXTURES = Path(__file__).parents[2] / "fixtures"
NOW = 1_900_000_000.0


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


def test_the_night_of_slurm_gives_its_306_jobs_with_their_ends() -> None:
    events = checked(read_sacct(slurm("sample-sacct-output-midnight-edge-case.txt.gz")))
    assert len({event.job_id for event in events}) == 306
    assert Counter(event.kind for event in events) == {
        "job_started": 306, "job_finished": 306, "job_requeued": 2,
    }  # fmt: skip
    ends = [event.fields for event in events if event.kind == "job_finished"]
    # By state of the jobs' own rows: FAILED 259, CANCELLED 24, COMPLETED 18, OUT_OF_MEMORY 2,
    # REQUEUED 2, TIMEOUT 1.
    assert Counter(end["outcome"] for end in ends) == {
        "failed": 259 + 2, "cancelled": 24, "succeeded": 18, "preempted": 2, "time_limit": 1,
    }  # fmt: skip
    assert Counter(end["cause"] for end in ends if end["outcome"] == "failed") == {
        "exit": 259, "host_oom": 2,
    }  # fmt: skip
    first = fields_of(events, "job_finished", job_id="39125549")
    assert first["reason"] == "It was cancelled by user 1185300516."


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
    events = checked(read_sacct(slurm(name), cluster="east"))
    assert events
    again = list(read_sacct(slurm(name), cluster="east"))
    assert [event.id for event in again] == [event.id for event in events]
    other = list(read_sacct(slurm(name), cluster="west"))
    assert not {event.id for event in other} & {event.id for event in events}


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


def test_a_requeue_is_the_same_job_with_another_run() -> None:
    events = checked(
        read_sacct(
            table(
                "7|NODE_FAIL|0:0|2026-01-01T00:00:00|2026-01-01T00:10:00|2026-01-01T01:00:00||||",
                "7|COMPLETED|0:0|2026-01-01T01:00:00|2026-01-01T02:00:00|2026-01-01T03:00:00||||",
            )
        )
    )
    assert [(event.kind, event.attempt) for event in events] == [
        ("job_submitted", 0), ("job_started", 0), ("job_finished", 0), ("job_requeued", 0),
        ("job_started", 1), ("job_finished", 1),
    ]  # fmt: skip
    assert (events[2].fields["cause"], events[5].fields["outcome"]) == ("node_failure", "succeeded")
    assert [event.time for event in events] == sorted(event.time for event in events)


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


def test_sacct_is_asked_for_a_period_in_slurms_own_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "sacct"
    program.write_text('#!/bin/sh\necho "JobID|State"\necho "$@" >&2\necho "7|$*"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    _, line = run_sacct(0.0, 3600.0, utc_offset_seconds=7200)
    assert b"--starttime 1970-01-01T02:00:00 --endtime 1970-01-01T03:00:00" in line
    assert f"--format {','.join(sacct.COLUMNS)}".encode() in line


INCIDENTS = {
    "nebius_b200_n4": ("succeeded", None, ()),
    "smc-ac-power__bert": ("failed", "user", ()),
    "Red_Hat": ("failed", "user", ()),
    "Dell": ("succeeded", None, ()),
}


def log(folder: str, name: str) -> Path:
    [path] = [path for path in (FIXTURES / folder).iterdir() if name in path.name]
    return path


@pytest.mark.parametrize("name", INCIDENTS)
def test_an_incident_of_mlperf_is_imported_with_its_truth(name: str) -> None:
    events = checked(read_mlperf(log("mlperf-incidents", name)))
    end = fields_of(events, "job_finished")
    truth = (end["outcome"], end.get("failure_class"), tuple(end["culprit_ranks"]))
    assert truth == INCIDENTS[name], end["reason"]
    [started] = [event for event in events if event.kind == "job_started"]
    [finished] = [event for event in events if event.kind == "job_finished"]
    assert finished.time >= started.time
    causes = {"smc-ac-power__bert": "data_error", "Red_Hat": "segfault"}
    assert end["cause"] == causes.get(name, "success")


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
    events = checked(read_mlperf(path, cluster="eos"))
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


def test_a_log_without_a_time_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("hello\n")
    with pytest.raises(ValueError, match="no line with a time"):
        list(read_mlperf(path))


TRACE = FIXTURES / "spot-preemption-bamboo/g4dn-trace.csv"


def test_the_replay_of_spot_nodes_gives_the_node_hours_of_the_arithmetic_by_hand() -> None:
    lines = TRACE.read_text().splitlines()
    events = checked(read_node_trace(lines, start_seconds=1e9, gpus_per_node=4))
    # By hand: every removal minus every arrival, and the end of the trace for those that stay.
    rows = [line.split(",") for line in lines]
    signed = [(1 if change == "remove" else -1) * int(ms) for ms, change, _ in rows]
    balance = sum(1 if change == "add" else -1 for _, change, _ in rows)
    by_hand_seconds = (sum(signed) + balance * int(rows[-1][0])) / 1000
    total, starts = 0.0, {}
    for event in events:
        if event.kind == "job_started":
            starts[event.job_id, event.attempt] = event.time
        elif event.kind == "job_finished":
            total += event.time - starts[event.job_id, event.attempt]
    assert total == pytest.approx(by_hand_seconds, rel=1e-12)
    assert (len(rows), len({node for _, _, node in rows})) == (153, 79)
    outcomes = Counter(e.fields["outcome"] for e in events if e.kind == "job_finished")
    assert outcomes == {"preempted": 153 - 79 - (len(starts) - 79), "cancelled": balance}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("5,remove,n1", "n1 is not there"),
        ("5,add,n0", "n0 is there already"),
        ("x,add,n1", "line 2: 'x,add,n1' is not MILLISECONDS"),
        ("5;add;n1", "is not MILLISECONDS"),
    ],
)
def test_a_line_that_is_none_of_a_trace_is_refused(line: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        list(read_node_trace(["0,add,n0", line], start_seconds=0.0))


def test_a_node_that_comes_back_is_the_same_job_once_more() -> None:
    lines = ["0,add,n", "1000,remove,n", "3000,add,n", "7000,remove,n"]
    events = checked(read_node_trace(lines, start_seconds=100.0))
    assert json.dumps([(event.kind, event.attempt, event.time) for event in events]) == json.dumps([
        ("job_started", 0, 100.0), ("job_preempted", 0, 101.0), ("job_finished", 0, 101.0),
        ("job_started", 1, 103.0), ("job_preempted", 1, 107.0), ("job_finished", 1, 107.0),
    ])  # fmt: skip
