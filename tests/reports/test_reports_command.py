"""``lockstep report`` as people and programs use it."""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator
from writers.report import markdown_page, schema

from lockstep_records.events.event import Event, append_event
from lockstep_records.files.jobs import page_path
from lockstep_records.files.operations import (
    CODES,
    FROM_PHASES,
    ON_DEVICE,
    OperationWriter,
    operations_path,
)
from lockstep_records.page.layout import SLOT
from lockstep_records.page.writer import PageWriter, RankIdentity
from lockstep_reports.command import report
from lockstep_reports.export import export_operations

from .report_command import report_json, run_report
from .synthetic_job import Slow, SyntheticJob

HOSTILE = "<script>alert(1)</script>[red]"


@pytest.fixture(name="working_folder")
def _working_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_slow_rank_stands_in_terminal_page_and_json(page_root: Path, tmp_path: Path) -> None:
    job = SyntheticJob(job_id="j1", slow=(Slow(rank=2, from_step=80, until_step=150),)).write(
        page_root
    )
    failed = {"rank": 2, "pid": 7, "exit_code": -9, "signal": "SIGKILL", "first": True}
    append_event(job, Event(kind="rank_ended", job_id="j1", attempt=0, fields=failed))
    page, values = tmp_path / "r.html", tmp_path / "r.json"
    result = run_report(
        "j1", "--html", str(page), "--json", str(values), "--price-per-gpu-hour", "1000"
    )
    assert result.exit_code == 0, result.output
    assert "Rank 2 was slow in backward" in result.output
    assert "Rank 2 was the first to fail, by SIGKILL." in result.output
    assert str(page) in result.output
    assert "Rank 2 was slow in backward" in page.read_text()
    payload = json.loads(values.read_text())
    assert payload["verdict"]["kind"] == "rank"
    assert (payload["verdict"]["ranks"], payload["verdict"]["phase"]) == ([2], "backward")
    assert payload["episodes"][0]["lost_seconds"] == pytest.approx(2.0, rel=0.1)
    assert payload["source"] == {"kind": "pages"}
    assert payload["what_if"] is None
    assert payload["lost_money"] > 0
    assert not list(tmp_path.glob(".*"))


def test_a_rank_slow_outside_the_marked_phases_is_described_in_words(
    page_root: Path, tmp_path: Path
) -> None:
    SyntheticJob(job_id="j4", slow=(Slow(rank=2, phase="other"),)).write(page_root)
    page = tmp_path / "r.html"
    result = run_report("j4", "--html", str(page))
    for text in (result.output, page.read_text()):
        assert "Rank 2 was slow outside the marked phases" in text
        assert "Its work outside the marked phases took" in text
        assert "with the job" in text


def test_a_page_that_can_tell_nobody_has_no_heading_without_a_text(
    page_root: Path, tmp_path: Path
) -> None:
    SyntheticJob(job_id="short", ranks=2, num_steps=10).write(page_root)
    page = tmp_path / "r.html"
    assert "Cannot tell who was slow." in run_report("short", "--html", str(page)).output
    assert not re.search(r"</h2>\s*(<ul>\s*</ul>|</section>)", page.read_text())


def test_json_to_standard_output_is_only_json(page_root: Path, working_folder: Path) -> None:
    SyntheticJob(job_id="clean").write(page_root)
    result = run_report("clean", "--json", "-")
    assert not list(working_folder.iterdir())
    payload = json.loads(result.stdout)
    assert payload["verdict"]["kind"] == "nobody"
    assert payload["verdict"]["confidence"] is None
    assert payload["lost_seconds"] == 0


def test_a_job_is_found_by_path_and_the_page_goes_beside_the_caller(
    page_root: Path, working_folder: Path
) -> None:
    folder = SyntheticJob(job_id="j2").write(page_root)
    assert "Nobody was slow." in run_report(str(folder)).output
    assert (working_folder / "lockstep-report-j2.html").is_file()


def test_missing_ranks_are_named(page_root: Path, tmp_path: Path) -> None:
    SyntheticJob(job_id="gap").write(page_root, skip=(1,))
    result = run_report("gap", "--html", str(tmp_path / "r.html"))
    assert result.exit_code == 0
    assert "1 rank of 4 left no readable page (1)" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere",), "job 'nowhere' is not under"),
        ((".",), "is not a job folder"),
        (("bad/../id",), "is not a job folder"),
        (("-x!",), "No such option"),
        (("j3", "--attempt", "4"), "attempt 4 is not in"),
        (("j3", "--html", "/nowhere/at/all.html"), "cannot write /nowhere/at/all.html"),
        (("j3", "--price-per-gpu-hour", "nan"), "nan must be a finite number"),
        (("j3", "--job-id", "other"), "--job-id is for a Prometheus"),
        (("j3", "--meta", __file__), "--meta is for operation traces"),
        (("j3", "--price-per-gpu-hour", "-1"), "price-per-gpu-hour"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(
    page_root: Path, working_folder: Path, arguments: tuple[str, ...], message: str
) -> None:
    SyntheticJob(job_id="j3", num_steps=45).write(page_root)
    result = run_report(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not list(working_folder.iterdir())


def test_a_page_of_another_world_size_is_one_sentence_and_exit_2(page_root: Path) -> None:
    SyntheticJob(job_id="mixed", ranks=2, num_steps=5).write(page_root)
    SyntheticJob(job_id="mixed", ranks=3, num_steps=5).write(page_root, skip=(0, 1))
    result = run_report("mixed", "--json", "-")
    assert result.exit_code == 2
    assert "world_size differs inside one attempt" in result.stderr
    assert not result.stdout


def _write_hostile(page_root: Path) -> None:
    for rank in range(2):
        path = page_path(page_root, "hostile", 0, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        identity = RankIdentity(
            job_id=HOSTILE, rank=rank, world_size=2, node=HOSTILE, cluster=HOSTILE
        )
        page = PageWriter(path, identity, rows=8)
        page.append(step=0, start_ns=0, seconds=0.1)
        page.commit(0)
        page.close()


def test_names_from_pages_are_text_in_the_page_and_in_the_terminal(
    page_root: Path, tmp_path: Path
) -> None:
    _write_hostile(page_root)
    ended = {"rank": 0, "exit_code": None, "signal": f"{HOSTILE}\x1b[31m", "first": True}
    append_event(
        page_root / "jobs" / "hostile",
        Event(kind="rank_ended", job_id="hostile", attempt=0, fields=ended),
    )
    page = tmp_path / "r.html"
    result = run_report("hostile", "--html", str(page))
    assert result.exit_code == 0, result.output
    assert "<script>alert(1)" not in page.read_text()
    assert "&lt;script&gt;alert(1)" in page.read_text()
    assert "\x1b" not in result.output
    assert "[red]" in result.output


PUBLISHED = [
    "dp_rank",
    "stage",
    "rank",
    "step",
    "optype",
    "start_ts",
    "duration",
    "seq_id",
    "mc",
    "mb_id",
    "gmc",
]


@pytest.fixture
def job() -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix="lockstep-test-", dir="/dev/shm"))
    yield root / "jobs" / "job-a"
    shutil.rmtree(root, ignore_errors=True)


def write_rank(job: Path, rank: int, steps: list[int], *, late_ns: int = 0, last: int = 99) -> None:
    """A rank of dp 2 x pp 2 x tp 2, which records one forward and one send in each of ``steps``."""
    mesh = (("dp", rank // 4), ("pp", rank // 2 % 2), ("tp", rank % 2))
    page = PageWriter(
        job / "0" / f"rank-{rank:05d}.page",
        RankIdentity(job_id="job-a", rank=rank, world_size=8, mesh=mesh),
        rows=4,
    )
    page.signed[SLOT.word("step")] = last
    page.words[SLOT.word("present")] |= SLOT.presence["step"]
    page.commit(1)
    writer = OperationWriter(operations_path(page.path), rank, rows=64)
    for step in steps:
        begin = step * 1_000_000_000 + late_ns
        forward = CODES["forward-compute"]
        stage = rank // 2 % 2
        writer.append(step, forward, begin, begin + 250_000_000, 0, micro_batch=0, chunk=stage)
        writer.append(step, CODES["forward-send"], begin + 250_000_000, begin + 300_000_000, 0)
    writer.close()
    page.close()


def select_type(table: pa.Table, name: str) -> pa.Table:
    return table.filter(pc.equal(table["optype"].cast(pa.string()), name))


def write_job(job: Path) -> None:
    for rank in range(8):
        write_rank(job, rank, [8, 16] if rank else [0, 8, 16])


def test_the_columns_are_those_of_the_published_traces(job: Path, tmp_path: Path) -> None:
    write_job(job)
    export = export_operations(job / "0", "job-a", tmp_path / "out")
    table = pq.read_table(export.trace)
    assert table.column_names == PUBLISHED
    assert (export.rows, export.steps, export.ranks) == (table.num_rows, 2, 4)
    assert sorted(set(table["rank"].to_pylist())) == [0, 2, 4, 6], "the first of each tensor group"
    assert sorted(set(table["step"].to_pylist())) == [8, 16], "step 0 is not of all ranks"
    forward = select_type(table, "forward-compute")
    assert set(forward["mb_id"].to_pylist()) == set(forward["mc"].to_pylist()) == {0}
    assert forward["gmc"].to_pylist() == forward["stage"].to_pylist()
    send = select_type(table, "forward-send")
    assert {index for name in ("mb_id", "mc", "gmc") for index in send[name].to_pylist()} == {-1}
    assert forward["duration"].to_pylist() == pytest.approx([0.25] * 8)
    meta = dict(line.split(": ") for line in export.meta.read_text().splitlines())
    assert [meta[f"{axis}_size"] for axis in ("dp", "pp", "tp", "world")] == ["2", "2", "2", "8"]


def test_starts_count_from_the_first_operation_of_the_step_over_all_ranks(
    job: Path, tmp_path: Path
) -> None:
    write_rank(job, 0, [8])
    write_rank(job, 2, [8], late_ns=40_000_000)
    table = pq.read_table(export_operations(job / "0", "job-a", tmp_path).trace)
    first = select_type(table, "forward-compute").sort_by("rank")["start_ts"].to_pylist()
    assert first[0] == 0.0
    assert first[1] == pytest.approx(0.04, abs=0.005), "two clock pairs, taken one after the other"


@pytest.mark.parametrize(
    ("rows", "seconds"),
    [
        ([(FROM_PHASES, 0.25)], [0.25]),
        ([(FROM_PHASES, 0.25), (FROM_PHASES | ON_DEVICE, 0.75)], [0.75]),
        ([(FROM_PHASES, 0.25), (0, 0.5)], [0.25, 0.5]),
        ([(0, 0.5), (FROM_PHASES | ON_DEVICE, 0.75)], [0.5, 0.75]),
    ],
    ids=["the host's alone", "both", "none of a device", "another source's beside the device's"],
)
def test_rows_of_the_host_are_left_out_where_the_device_recorded_its_seconds(
    job: Path, tmp_path: Path, rows: list[tuple[int, float]], seconds: list[float]
) -> None:
    write_rank(job, 0, [7], last=9)
    path = operations_path(job / "0" / "rank-00000.page")
    path.unlink()
    writer = OperationWriter(path, 0, rows=64)
    forward, optimizer = CODES["forward-compute"], CODES["optimizer"]
    for flags, duration in rows:
        writer.append(8, forward, 10**9, 10**9 + int(duration * 1e9), 0, flags=flags)
    writer.append(8, optimizer, 2 * 10**9, 2 * 10**9 + 1000, 0, flags=FROM_PHASES)
    writer.append(9, forward, 3 * 10**9, 3 * 10**9 + 10**9, 0, flags=FROM_PHASES)
    writer.close()
    table = pq.read_table(export_operations(job / "0", "job-a", tmp_path / "out").trace)
    at_eight = table.filter(pc.equal(table["step"], 8))
    durations = select_type(at_eight, "forward-compute")["duration"].to_pylist()
    assert sorted(durations) == pytest.approx(seconds)
    assert select_type(at_eight, "optimizer").num_rows == 1, "the device told nothing of it"
    assert table.filter(pc.equal(table["step"], 9)).num_rows == 1, "nor of this step"


def test_a_step_that_was_never_completed_is_left_out(job: Path, tmp_path: Path) -> None:
    write_rank(job, 0, [8, 16], last=8)
    table = pq.read_table(export_operations(job / "0", "job-a", tmp_path).trace)
    assert set(table["step"].to_pylist()) == {8}


def test_ranks_without_a_common_step_export_nothing(job: Path, tmp_path: Path) -> None:
    write_rank(job, 0, [8])
    write_rank(job, 2, [16])
    with pytest.raises(ValueError, match="lockstep switch"):
        export_operations(job / "0", "job-a", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_exports_or_says_in_one_sentence_why_not(job: Path, tmp_path: Path) -> None:
    write_job(job)
    out = tmp_path / "out"
    result = CliRunner().invoke(report, [str(job), "--export", str(out)])
    assert result.exit_code == 0, result.output
    assert "16 operations, 2 steps, 4 ranks" in result.output
    for path in (job / "0").glob("*.ops"):
        path.unlink()
    refused = CliRunner().invoke(report, [str(job), "--export", str(tmp_path / "none")])
    assert refused.exit_code == 2
    assert "no operations to export" in refused.output
    assert not (tmp_path / "none").exists()


ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests/fixtures"
SOURCES: dict[str, str | Path] = {
    "operations": "straggler-bytedance/trace-ST.parquet",
    "log": "joblogs/gpu_oom_one_rank_others_time_out.log",
    "flight_recorder": "flight-recorder-nvrx/lock_gil_1st",
    "kineto": "kineto-hta",
    "worker_times": "minibatch-alibaba/job_3_norm.csv",
    "step_series": min((FIXTURES / "megatron-iteration-times").glob("gpt*")),
}
SILENT = {
    "price_per_gpu_hour", "failure_class", "first_cause", "comparison", "first_sign", "first_step",
    "last_progress", "last_sign", "run_seconds", "lost_ratio", "lost_seconds",
}  # fmt: skip


def problems(payload: dict[str, Any]) -> list[str]:
    errors = Draft202012Validator(schema()).iter_errors(payload)
    return [f"{list(error.absolute_path)}: {error.message}" for error in errors]


@pytest.mark.parametrize("kind", SOURCES)
def test_a_report_keeps_to_the_schema_and_every_null_at_its_top_has_a_reason(kind: str) -> None:
    payload = report_json(FIXTURES / SOURCES[kind])
    assert payload["source"]["kind"] == kind
    assert problems(payload) == []
    nulls = {name for name, value in payload.items() if value is None}
    assert nulls - SILENT <= payload["unknown"].keys()
    assert all(reason for reason in payload["unknown"].values())


def test_a_compared_report_of_pages_keeps_to_the_schema(page_root: Path) -> None:
    folder = SyntheticJob(slow=(Slow(rank=2),)).write(page_root)
    payload = report_json(
        folder, "--from", "100", "--against", "baseline", "--price-per-gpu-hour", "2"
    )
    assert payload["comparison"]["verdict_changed"]
    assert problems(payload) == []


def test_the_schema_refuses_what_is_not_declared_and_what_is_missing() -> None:
    payload = report_json(FIXTURES / SOURCES["operations"])
    assert problems({**payload, "surprise": 1})
    assert problems({**payload, "verdict": {**payload["verdict"], "kind": "somebody"}})
    del payload["outcome"]
    assert problems(payload)


def test_the_published_page_is_up_to_date() -> None:
    assert (ROOT / "docs/formats/report.md").read_text() == markdown_page()
