"""``lockstep report`` as people and programs use it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from writers.report import markdown_page, schema

from lockstep_records.events.event import Event, append_event
from lockstep_records.files.jobs import page_path
from lockstep_records.page.writer import PageWriter, RankIdentity

from .report_command import report_json, run_report
from .synthetic_job import Slow, SyntheticJob

HOSTILE = "<script>alert(1)</script>[red]"


@pytest.fixture(name="working_folder")
def _working_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
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


def test_a_page_that_names_nobody_has_no_heading_without_text(
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
        (("",), "SOURCE is empty"),
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
    text = " ".join(result.stderr.split())
    assert re.search(r"world_size differs inside one attempt: 2 in .* 3 in", text)
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


def test_names_from_pages_are_text_in_page_and_terminal(page_root: Path, tmp_path: Path) -> None:
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
