"""Folders of the Inspector's JSON name the late rank, nobody, or say why they cannot."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ..report_command import report_json, reported, run_report
from .inspector_files import DATA_PARALLEL, OVERLAPPED, TENSOR_AND_DATA, InspectedJob, Planned


def late(
    rank: int, milliseconds: float, operation: int | None = 0
) -> Callable[[int, int, int], float]:
    return lambda r, _, op: milliseconds * (r == rank and operation in {None, op})


LATE = {
    "two ranks": (InspectedJob(num_ranks=2, late=late(1, 40)), 1, 40),
    "the oldest version": (InspectedJob(version="v4.0", late=late(5, 25, 1)), 5, 25),
    "context in the stats": (InspectedJob(version="v4.4", late=late(5, 25, 1)), 5, 25),
    "version of RCCL": (InspectedJob(version="v5.0", late=late(7, 25, 2)), 7, 25),
    "traces": (InspectedJob(has_traces=True, plan=DATA_PARALLEL, late=late(2, 30)), 2, 30),
    "a clock ahead": (
        InspectedJob(has_traces=True, clocks={6: 3.2, 2: -7.5}, late=late(2, 20)), 2, 20,
    ),
    "a clock ahead without traces": (InspectedJob(clocks={6: 3.2}, late=late(2, 20)), 2, 20),
    "the last operation": (InspectedJob(late=late(0, 25, 3)), 0, 25),
    "tensor and data parallel": (
        InspectedJob(plan=TENSOR_AND_DATA, late=lambda r, _, op: 4.0 * (r == 5 and op < 8)), 5, 32,
    ),
    "the same with traces": (
        InspectedJob(
            plan=TENSOR_AND_DATA, has_traces=True, late=lambda r, _, op: 4.0 * (r == 5 and op < 8)
        ), 5, 32,
    ),
    "half of the records": (InspectedJob(steps=120, version="v4.4", ring=14, interval_seconds=1.0,
                                         late=late(4, 25)), 4, 25),
    "1,024 ranks": (
        InspectedJob(num_ranks=1024, steps=40, late=late(700, 30), plan=DATA_PARALLEL), 700, 24,
    ),
    "64 ranks": (InspectedJob(num_ranks=64, late=late(41, 30), plan=DATA_PARALLEL), 41, 30),
}  # fmt: skip
OVERLAPPED_LATE = InspectedJob(plan=OVERLAPPED, has_traces=True, late=late(1, 4.0, None))
HEALTHY = {
    "two ranks": InspectedJob(num_ranks=2),
    "traces and a clock ahead": InspectedJob(has_traces=True, clocks={3: 5.0}),
    "tensor and data parallel": InspectedJob(plan=TENSOR_AND_DATA),
    "a slow link of one group": InspectedJob(
        plan=TENSOR_AND_DATA,
        slow=lambda group, number: 4.0 if (group, number) == ("data", 1) else 1,
    ),
    "overlapped buckets": InspectedJob(plan=OVERLAPPED, has_traces=True),
}


@pytest.mark.parametrize("name", LATE)
def test_the_late_rank_is_named_with_its_lateness(name: str, tmp_path: Path) -> None:
    job, rank, milliseconds = LATE[name]
    analysis = reported(job.write(tmp_path))
    assert analysis.verdict.ranks == (rank,), analysis.verdict
    assert analysis.verdict.phase is None
    assert analysis.episodes[0].late_seconds == pytest.approx(milliseconds / 1e3, rel=0.25)
    assert len(analysis.steps.numbers) == pytest.approx(
        job.steps, rel=0.5 if job.ring < 99 else 0.03
    )


def test_of_collectives_beside_work_only_the_longest_wait_counts(tmp_path: Path) -> None:
    analysis = reported(OVERLAPPED_LATE.write(tmp_path))
    assert analysis.verdict.ranks == (1,)
    # The sum of their waits is 84 ms; the step is 24 ms longer.
    assert 0.010 < analysis.episodes[0].late_seconds < 0.030


@pytest.mark.parametrize("name", LATE)
def test_the_longest_duration_and_the_lowest_bandwidth_are_the_victims(name: str) -> None:
    job, late_rank, _ = LATE[name]
    means = [np.mean([r.end - r.begin for r in records]) for records in job.record()]
    bandwidths = [
        np.mean([r.size_bytes / (r.end - r.begin) for r in records]) for records in job.record()
    ]
    assert late_rank not in {int(np.argmax(means)), int(np.argmin(bandwidths))}


@pytest.mark.parametrize("late_rank", [None, 5])
def test_ranks_without_file_leave_a_verdict_on_others(
    late_rank: int | None, tmp_path: Path
) -> None:
    job = InspectedJob(late=late(late_rank, 40) if late_rank else late(0, 0))
    verdict = reported(job.write(tmp_path, without=(0, 3))).verdict
    assert verdict.ranks == ((5,) if late_rank else ())
    assert verdict.kind == ("rank" if late_rank else "nobody")
    assert "(0, 3); what they did is not judged, and held up" in " ".join(verdict.evidence)


@pytest.mark.parametrize("name", HEALTHY)
def test_nobody_is_named_in_a_healthy_job(name: str, tmp_path: Path) -> None:
    verdict = reported(HEALTHY[name].write(tmp_path)).verdict
    assert (verdict.kind, verdict.ranks) == ("nobody", ())


UNKNOWN = {
    "records are missing": (InspectedJob(ring=1, interval_seconds=2.0), (), "were recorded"),
    "too few steps": (InspectedJob(steps=3), (), "are needed"),
    "one rank": (InspectedJob(), tuple(range(1, 8)), "Only one rank"),
    "the late rank is missing": (InspectedJob(late=late(3, 40)), (0, 3), "may be the slow one"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_too_little_is_unknown_and_said(name: str, tmp_path: Path) -> None:
    job, without, reason = UNKNOWN[name]
    verdict = reported(job.write(tmp_path, without=without)).verdict
    assert verdict.kind == "unknown"
    assert reason in " ".join(verdict.evidence)


def test_times_that_contradict_their_bandwidth_are_doubted(tmp_path: Path) -> None:
    InspectedJob(late=late(5, 25)).write(tmp_path)
    for file in tmp_path.iterdir():
        file.write_text(file.read_text().replace('"coll_exec_time_us": ', '"coll_exec_time_us": 1'))
    verdict = reported(tmp_path).verdict
    assert verdict.kind == "unknown"
    assert "not possible" in verdict.evidence[0]


def test_bad_lines_and_a_half_one_are_left_out_and_counted(tmp_path: Path) -> None:
    InspectedJob(late=late(5, 25)).write(tmp_path)
    (file,) = tmp_path.glob("*pid103.log")
    good = file.read_text()
    bad = ["null", "[]", "{}", '{"coll_perf": {}}', "\0", '{"a":' * 5000, good[:99]]
    file.write_text(
        good + "\n".join([good.splitlines()[0].replace('"coll_sn": ', '"coll_sn": -'), *bad])
    )
    payload = report_json(tmp_path)
    assert payload["verdict"]["ranks"] == [5]
    assert any("bad lines of node-0-pid103.log" in note for note in payload["notes"])


def test_lines_without_their_context_are_nobodys(tmp_path: Path) -> None:
    InspectedJob(version="v4.4", steps=10).write(tmp_path)
    for file in tmp_path.iterdir():
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join(line for line in lines if "header" not in line))
    result = run_report(tmp_path)
    assert result.exit_code == 2
    assert "none tells their communicator and rank" in result.output


def test_of_two_jobs_in_a_folder_each_has_its_report(tmp_path: Path) -> None:
    InspectedJob(num_ranks=4, late=late(1, 40), seed=2).write(tmp_path)
    for file in tmp_path.iterdir():
        file.rename(file.with_name(file.name.replace("node-0", "node-9")))
    InspectedJob(steps=90).write(tmp_path)
    payload = report_json(tmp_path)
    assert (payload["world_size"], payload["verdict"]["ranks"]) == (8, [])
    (left_out,) = (note for note in payload["notes"] if "another job" in note)
    other = left_out.split("--job-id ")[1].split()[0]
    payload = report_json(tmp_path, "--job-id", other)
    assert (payload["world_size"], payload["verdict"]["ranks"]) == (4, [1])


def test_silence_is_said_and_not_taken_for_health(tmp_path: Path) -> None:
    InspectedJob().write(tmp_path)
    for file in tmp_path.iterdir():
        os.utime(file, (time.time() - 900,) * 2)
    assert any(
        "Nothing was written in the 15.0 min" in note for note in report_json(tmp_path)["notes"]
    )


ONE_ROOT = (Planned("world", "Broadcast", 16384, 30, 0.1),)


@pytest.mark.parametrize("silent_seconds", [5, 900])
def test_who_completed_fewer_broadcasts_holds_up_a_job_that_is_silent(
    silent_seconds: int, tmp_path: Path
) -> None:
    InspectedJob(plan=ONE_ROOT).write(tmp_path)
    (file,) = tmp_path.glob("*pid106.log")
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-2]))
    for each in tmp_path.iterdir():
        os.utime(each, (time.time() - silent_seconds,) * 2)
    verdict = reported(tmp_path).verdict
    assert verdict.ranks == ((6,) if silent_seconds > 60 else ())
    assert ("has completed 58 Broadcast" in verdict.evidence[0]) == (silent_seconds > 60)


def write_means(folder: Path, seconds: list[float], labels: str = "") -> Path:
    """The text of 2.30, with one communicator over all GPUs."""
    for gpu, value in enumerate(seconds):
        own = (
            f'version="v5.1",slurm_job_id="7",node="n{gpu // 8}",gpu="GPU{gpu % 8}",'
            f'comm_name="dp:0",n_nodes="1",nranks="{len(seconds)}",collective="AllReduce",'
            f'message_size="32-33MB",algo_proto="RING_LL"{labels}'
        )
        (folder / f"n{gpu // 8}").mkdir(exist_ok=True)
        (folder / f"n{gpu // 8}" / f"nccl_inspector_metrics_{gpu:08x}.prom").write_text(
            f"nccl_bus_bandwidth_gbs{{{own}}} {1 / value}\n"
            f"nccl_collective_exec_time_microseconds{{{own}}} {value}\n"
            f"nccl_collective_exec_time_microseconds{{{own}}} 0.0"
        )
    return folder


@pytest.mark.parametrize(
    ("seconds", "labels", "sentence"),
    [
        ([90.0, 91, 92, 30, 93, 94, 95, 96], "", "n0 GPU3 has the lowest mean time"),
        ([90.0] * 8, "", "Only means over all operations"),
        ([90.0] * 8, ',comm_id="0x1",rank="0",coll_sn="4"', "latest operation of each"),
    ],
)
def test_means_name_nobody_and_say_where_to_look_first(
    seconds: list[float], labels: str, sentence: str, tmp_path: Path
) -> None:
    verdict = reported(write_means(tmp_path, seconds, labels)).verdict
    assert verdict.kind == "unknown"
    assert sentence in " ".join(verdict.evidence)
    assert ("lowest" in " ".join(verdict.evidence)) == (min(seconds) < max(seconds))


def test_a_file_of_endless_communicators_is_left_out_and_costs_no_other(tmp_path: Path) -> None:
    InspectedJob(late=late(5, 25)).write(tmp_path)
    (file,) = tmp_path.glob("*pid100.log")
    line = file.read_text().splitlines()[0]
    name = json.loads(line)["header"]["id"]
    lines = (line.replace(name, f"0x{number:x}") for number in range(9000))
    (tmp_path / "node-0-pid7.log").write_text("\n".join(lines))
    payload = report_json(tmp_path)
    assert payload["verdict"]["ranks"] == [5]
    assert any("communicators and functions" in note for note in payload["notes"])
