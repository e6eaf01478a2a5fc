"""Pages, Markdown and Perfetto traces of every kind of recording: what is unknown is left out."""

import gzip
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lockstep_records.events.event import Event, append_event
from lockstep_reports.document import timeline

from ..report_command import run_report
from ..synthetic_job import Slow, SyntheticJob

ANY = Path("any")
FIXTURES = Path(__file__).parents[2] / "fixtures"
SOURCES = {
    "operations": FIXTURES / "straggler-bytedance/trace-ST.parquet",
    "log": FIXTURES / "joblogs/gpu_oom_one_rank_others_time_out.log",
    "flight_recorder": FIXTURES / "flight-recorder-nvrx/lock_gil_1st",
    "worker_times": FIXTURES / "minibatch-alibaba/job_3_norm.csv",
}
HEADS = {
    "operations": "Stage 3 (2 ranks) was slow in forward",
    "log": "The job failed: rank 3 was the first cause.",
    "flight_recorder": "held it up.",
    "worker_times": "slow",
}
HOSTILE = "a|b`<script>\n# x"


@pytest.mark.parametrize("kind", SOURCES)
def test_every_kind_has_a_page_and_markdown_with_its_gaps_named(kind: str, tmp_path: Path) -> None:
    page, text = tmp_path / "r.html", tmp_path / "r.md"
    result = run_report(SOURCES[kind], "--html", page, "--markdown", text)
    assert result.exit_code == 0, result.output
    for content in (page.read_text(), text.read_text()):
        assert HEADS[kind] in content.replace("\\", "")
        assert "What this report cannot tell" in content
    body = page.read_text().rpartition("</script>")[2]
    assert ">unknown<" not in body.replace(">unknown</td>", "")
    assert "src=" not in body
    assert "@media print" in page.read_text()


def test_a_page_without_figures_carries_no_script(tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    run_report(SOURCES["flight_recorder"], "--html", page)
    assert "<script" not in page.read_text()
    assert "Who was late" not in page.read_text()
    assert page.stat().st_size < 30_000


def test_markdown_to_standard_output_is_only_markdown(tmp_path: Path, page_root: Path) -> None:
    folder = SyntheticJob(job_id="m", slow=(Slow(rank=2),)).write(page_root)
    result = run_report(folder, "--markdown", "-", "--price-per-gpu-hour", 4)
    assert result.exit_code == 0
    assert result.stdout.startswith("# Rank 2 was slow in backward")
    assert "| straggler wait |" in result.stdout
    assert "## What to do next" in result.stdout
    assert not list(tmp_path.iterdir())


def test_names_from_records_are_text_in_markdown(page_root: Path) -> None:
    folder = SyntheticJob(job_id="h").write(page_root)
    fields = {"rank": 0, "exit_code": None, "signal": HOSTILE, "first": True}
    append_event(folder, Event(kind="rank_ended", job_id="h", attempt=0, fields=fields))
    markdown = run_report(folder, "--markdown", "-").stdout
    assert "<script>" not in markdown
    assert "\n# x" not in markdown
    assert "a\\|b" in markdown


def trace_events(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    payload = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    events: list[dict[str, Any]] = payload["traceEvents"]
    return events


def test_a_trace_has_a_track_per_rank_with_phases_waits_and_episodes(
    page_root: Path, tmp_path: Path
) -> None:
    folder = SyntheticJob(job_id="t", slow=(Slow(rank=2),)).write(page_root)
    path = tmp_path / "t.json.gz"
    result = run_report(folder, "--perfetto", path, "--json", "-")
    assert result.exit_code == 0, result.output
    events = trace_events(path)
    names = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {name.split()[1] for name in names} == {"0", "1", "2", "3"}
    spans = [e for e in events if e["ph"] == "X"]
    waits = dict.fromkeys(range(4), 0.0)
    for span in spans:
        if span["pid"] == 1 and span["name"].startswith("sync"):
            waits[span["tid"]] += span["dur"]
    assert min(waits, key=lambda rank: waits[rank]) == 2
    (slow,) = [span for span in spans if span["pid"] == 0]
    assert slow["name"] == "Rank 2 slow in backward"
    assert slow["args"]["lost_seconds"] == pytest.approx(3.0, rel=0.1)
    by_step = [s for s in spans if s["pid"] == 1 and s["tid"] == 0 and s["args"]["step"] == 150]
    ends = [(s["ts"], s["ts"] + s["dur"]) for s in sorted(by_step, key=lambda s: s["ts"])]
    assert all(later[0] >= earlier[1] - 1 for earlier, later in itertools.pairwise(ends))


def test_a_trace_of_operations_and_one_of_a_log_have_their_events(tmp_path: Path) -> None:
    for kind, name in (("operations", "forward-compute"), ("log", "gpu_oom")):
        path = tmp_path / f"{kind}.json"
        assert run_report(SOURCES[kind], "--perfetto", path, "--json", "-").exit_code == 0
        assert name in {event["name"] for event in trace_events(path)}


def test_a_trace_is_bounded_and_keeps_the_onset(
    page_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "MAX_EVENTS", 480)
    folder = SyntheticJob(job_id="b", slow=(Slow(rank=1, from_step=100),)).write(page_root)
    path = tmp_path / "b.json"
    run_report(folder, "--perfetto", path, "--json", "-")
    steps = {e["args"]["step"] for e in trace_events(path) if e["ph"] == "X" and e["pid"] == 1}
    assert len(steps) <= 20
    assert {99, 100, 101} <= steps


def test_a_recording_without_times_has_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    result = run_report(SOURCES["worker_times"], "--perfetto", path, "--html", tmp_path / "x.html")
    assert result.exit_code == 2
    assert "has no times" in result.stderr
    assert not list(tmp_path.iterdir())


def test_json_loads_neither_pictures_nor_a_client() -> None:
    words = (
        "import sys; from lockstep_reports.command import report;"
        f"report([{str(SOURCES['operations'])!r}, '--json', '-'], standalone_mode=False);"
        "print([m for m in ('plotly', 'jinja2', 'httpx', 'rich') if m in sys.modules],"
        " file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", words], check=True, capture_output=True, text=True, timeout=50
    )
    assert done.stderr.strip() == "[]"
