"""Slurm's text becomes job records with outcomes."""

import gzip
from collections import Counter
from datetime import UTC
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from lockstep_outcomes.slurm import (
    ENDED_STATES,
    OPEN_STATES,
    jobs,
    read_partitions,
    rows,
    state_of,
    tasks_of,
)

FIXTURES = Path(__file__).parents[1] / "fixtures/slurm-gcm"


def read(name: str) -> list[bytes]:
    path = FIXTURES / name
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return data.splitlines()


def test_the_rows_of_a_night_are_counted_by_state() -> None:
    table = list(rows(read("sample-sacct-output-midnight-edge-case.txt.gz")))
    assert len(table) == 1186
    assert Counter(state_of(row["State"])[0] for row in table) == {
        "FAILED": 778,
        "COMPLETED": 349,
        "CANCELLED": 48,
        "OUT_OF_MEMORY": 8,
        "REQUEUED": 2,
        "TIMEOUT": 1,
    }


def test_a_job_is_one_record_over_its_steps_and_requeues() -> None:
    records = jobs(rows(read("sample-sacct-output-midnight-edge-case.txt.gz")))
    assert len(records) == 306
    assert len({job.job_id for job in records}) == 306
    first = next(job for job in records if job.job_id == "39125549")
    assert (first.state, first.cancelled_by) == ("CANCELLED", "1185300516")
    assert first.end is not None
    assert first.start is not None
    assert first.end - first.start == pytest.approx(2 * 86400 + 21 * 3600 + 52 * 60 + 18)


def test_a_comment_over_several_lines_stays_in_its_row() -> None:
    table = list(rows(read("sample-sacct-multiple-multiline.txt")))
    assert len(table) == 6
    assert all(
        row["JobID"] and state_of(row["State"])[0] in OPEN_STATES | ENDED_STATES for row in table
    )
    assert all(row["Account"].startswith("project") for row in table)


@pytest.mark.parametrize(
    "name",
    [
        "sample-sacct-output-invalid-utf8.txt",
        "sample-sacct-output.txt.gz",
        "sample-sacct-running-output.txt",
    ],
)
def test_every_row_of_a_recording_has_a_known_state(name: str) -> None:
    table = list(rows(read(name)))
    assert table
    assert {state_of(row["State"])[0] for row in table} <= OPEN_STATES | ENDED_STATES


def test_a_running_job_has_no_end() -> None:
    records = jobs(rows(read("sample-sacct-running-output.txt")))
    running = [job for job in records if job.state == "RUNNING"]
    assert running
    assert all(job.end is None and job.start is not None for job in running)


@pytest.mark.parametrize(
    ("text", "state", "by"),
    [
        ("CANCELLED by 1185300516", "CANCELLED", "1185300516"),
        ("CANCELLED+", "CANCELLED", None),
        ("OUT_OF_ME+", "OUT_OF_MEMORY", None),
        ("NODE_FAIL", "NODE_FAIL", None),
        ("drained$", "DRAINED", None),
    ],
)
def test_flags_of_a_state_are_removed(text: str, state: str, by: str | None) -> None:
    assert state_of(text) == (state, by)


def test_a_text_that_is_no_table_is_refused_by_one_sentence() -> None:
    with pytest.raises(ValueError, match="--parsable"):
        list(rows(["hello"]))


HOSTILE = FIXTURES.parent / "slurm-22.05/hostile-names.txt"
COLUMNS = "JobID|State|Start|End|JobName"


def test_a_name_with_delimiters_and_a_forged_row_stays_a_name() -> None:
    warnings: list[str] = []
    table = list(rows(HOSTILE.read_bytes().splitlines(), warn=warnings.append))
    assert warnings == []
    assert [row["JobID"] for row in table] == [
        "4240", "4241", "4242", "4242", "4243+0", "4243+1", "4245_0", "4245_1",
    ]  # fmt: skip
    assert table[0]["JobName"] == "a|b\n9999|root|x|COMPLETED|0:0|2026-01-01T00:00:00"
    assert {row["Cluster"] for row in table} == {"lab"}
    requeued = next(job for job in jobs(table) if job.job_id == "4242")
    assert [(run.submit, run.start, run.end) for run in requeued.earlier] == [
        (1795436286.0, 1795436286.0, 1795436292.0)
    ]
    assert (requeued.submit, requeued.start, requeued.end) == (
        1795436292.0, 1795436304.0, 1795436331.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "job_ids", "warning"),
    [
        # A bar in a name moved the columns behind it; the row is left out as it is.
        (["7|COMPLETED|1|2|a|b", "8|COMPLETED|1|2|c"], ["8"], "has 6 columns of 5"),
        # A row torn by a line end takes what follows with it, and nobody reads half of either.
        (["7|COMPLETED|1", "8|COMPLETED|1|2|c", "9|COMPLETED|1|2|d"], ["9"], "7 columns of 5"),
        (["root|COMPLETED|1|2|c", "8|COMPLETED|1|2|c"], ["8"], "begins with no job id, 'root'"),
        (["8|COMPLETED|1|2|c", "9|COMP"], ["8"], "the last row has fewer than 5 columns"),
    ],
)
def test_a_row_that_is_not_the_headers_is_left_out_with_a_sentence(
    lines: list[str], job_ids: list[str], warning: str
) -> None:
    warnings: list[str] = []
    table = list(rows([COLUMNS, *lines], warn=warnings.append))
    assert [row["JobID"] for row in table] == job_ids
    assert "names of jobs can hold '|' and forge rows" in warnings[0]
    assert warning in warnings[1]


def test_times_are_of_the_zone_in_which_they_were_printed_also_where_clocks_change() -> None:
    # Berlin: 2026-10-25 03:00 CEST is 02:00 CET, so 01:30 to 04:30 takes four hours.
    table = [COLUMNS, "7|COMPLETED|2026-10-25T01:30:00|2026-10-25T04:30:00|a"]
    [berlin] = jobs(rows(table), ZoneInfo("Europe/Berlin"))
    [utc] = jobs(rows(table), UTC)
    assert berlin.start is not None
    assert berlin.end is not None
    assert utc.start == berlin.start + 7200.0
    assert berlin.end - berlin.start == 4 * 3600.0


@pytest.mark.parametrize(
    ("tres", "gpus", "model"),
    [
        ("billing=1,gres/gpu=8,gres/gpu:h100=8,node=1", 8, "h100"),
        ("gres/gpu:a100=4,gres/gpu:h100=4", 8, None),
        ("gres/gpu=6,gres/gpu:a100=2,gres/gpu:h100=4", 6, None),
        ("cpu=4,node=1", None, None),
        ("gres/gpu=0", 0, None),
        ("gres/shard=2", None, None),
    ],
)
def test_gpus_are_counted_once_also_where_they_are_named_by_model(
    tres: str, gpus: int | None, model: str | None
) -> None:
    [job] = jobs([{"JobID": "7", "State": "COMPLETED", "AllocTRES": tres}])
    assert (job.gpus, job.gpu_model) == (gpus, model)


SINFO = """PARTITION|OVERSUBSCRIBE|GRES|CPUS
whole*|EXCLUSIVE|gpu:h100:8(S:0-1)|192
cpu|NO|(null)|64
shared|NO|gpu:1g.10gb:7,gpu:h100:1|32
mixed|EXCLUSIVE|gpu:8|32
mixed|EXCLUSIVE|gpu:4|32"""
ASKED = {"JobID": "7", "State": "COMPLETED", "Partition": "whole", "NNodes": "2", "NTasks": "4"}


@pytest.mark.parametrize(
    ("columns", "gpus", "source"),
    [
        ({"AllocTRES": "cpu=9", "ReqTRES": "gres/gpu:a100=8"}, 8, "ReqTRES"),
        ({"AllocTRES": "cpu=9,gres/shard=2", "SubmitLine": "sbatch --gpus=8 a.sh"}, None, ""),
        ({"AllocTRES": "cpu=9"}, 16, "Partition"),
        ({"Partition": "cpu"}, 0, "Partition"),
        ({"Partition": "shared", "AllocTRES": "cpu=64,node=2"}, 16, "Partition"),
        ({"Partition": "shared", "AllocTRES": "cpu=24,node=2"}, None, ""),
        ({"Partition": "mixed"}, None, ""),
        ({"AllocTRES": "gres/mps=50"}, None, ""),
        ({"Partition": "b", "SubmitLine": "sbatch --gpus 8 a.sh"}, 8, "SubmitLine"),
        ({"Partition": "b", "SubmitLine": "sbatch -G a100:8 a.sh"}, 8, "SubmitLine"),
        ({"Partition": "b", "SubmitLine": "srun --gpus-per-node=h100:8 a"}, 16, "SubmitLine"),
        ({"Partition": "b", "SubmitLine": "srun --gres=nvme:1,gpu:4 a"}, 8, "SubmitLine"),
        ({"Partition": "b", "SubmitLine": "srun --gpus-per-task=1 a"}, 4, "SubmitLine"),
        ({"Partition": "b", "SubmitLine": "sbatch a.sh"}, None, ""),
    ],
)
def test_gpus_are_of_the_first_column_that_states_them_and_else_unknown(
    columns: dict[str, str], gpus: int | None, source: str
) -> None:
    [job] = jobs([ASKED | columns], partitions=read_partitions(SINFO.splitlines()))
    assert (job.gpus, job.gpus_source) == (gpus, source)


def test_an_array_that_waits_is_its_tasks() -> None:
    [job] = jobs([{"JobID": "7_[1-3,9-13:2%4]", "State": "PENDING"}])
    assert [task.job_id for task in tasks_of(job)] == [f"7_{n}" for n in (1, 2, 3, 9, 11, 13)]
