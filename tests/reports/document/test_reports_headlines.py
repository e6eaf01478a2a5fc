"""The first line of a report is the most severe finding: failed, hung, slow, or nobody."""

import gzip
import itertools
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from lockstep_records.events.event import Event, append_event
from lockstep_records.files.jobs import job_folder, page_path
from lockstep_records.files.last_output import RankError, write_error
from lockstep_records.page.layout import PHASES
from lockstep_records.page.writer import PageWriter, RankIdentity
from lockstep_reports.analysis.steps import StepAnalysis, analyse
from lockstep_reports.command import report
from lockstep_reports.document import timeline
from lockstep_reports.document.advice import step_advice
from lockstep_reports.document.headline import findings
from lockstep_reports.readers import node_series
from lockstep_reports.recording.steps import Steps
from lockstep_reports.render.outputs import Outputs

from ..report_command import run_report
from ..synthetic_job import Slow, SyntheticJob, recording_of

RANKS = 4
BEGIN = 1_790_000_000.0
SLOW = SyntheticJob(slow=(Slow(rank=2, seconds=0.05),))
FAILED: Mapping[str, Any] = {
    "outcome": "failed",
    "cause": "exception",
    "reason": "KeyError: 'x' on rank 1.",
    "cause_ranks": [1],
    "exception": "KeyError: 'x' (/home/me/train.py:7, in step)",
    "followers": [0, 2, 3],
    "last_step": 199,
}
STANDING = [
    {"rank": 0, "phase": "sync", "step": 199, "idle_seconds": 130.0, "process": "S"},
    {"rank": 1, "phase": "data", "step": 199, "idle_seconds": 131.0, "process": "T"},
]


def event(kind: str, seconds: float = 100.0, **fields: Any) -> Event:
    return Event(kind=kind, job_id="synthetic", attempt=0, fields=fields, time=BEGIN + seconds)


def analysed(steps: Steps, *events: Event) -> StepAnalysis:
    ends = [event.fields for event in events if event.kind == "attempt_ended"]
    recording = replace(recording_of(steps), events=events, end=ends[-1] if ends else {})
    return analyse(recording)


def headline(analysis: StepAnalysis) -> tuple[str, str]:
    first = next(findings(analysis))
    return first.severity, first.sentence


def test_a_failure_comes_before_a_slow_rank_which_stays_a_remark() -> None:
    analysis = analysed(SLOW.steps(), event("attempt_ended", **FAILED))
    severity, sentence = headline(analysis)
    assert severity == "failed"
    assert sentence == (
        "The job failed: rank 1 raised KeyError: 'x' (train.py:7, in step), after step 199;"
        " ranks 0, 2 and 3 followed."
    )
    assert any("Rank 2 was slow in backward" in finding.sentence for finding in findings(analysis))


@pytest.mark.parametrize(
    ("cause", "severity", "begin"),
    [
        ("host_oom", "out_of_memory", "The job ran out of memory: "),
        ("hang", "hung", "The job hung: "),
        ("killed", "failed", "The job failed: "),
    ],
)
def test_memory_and_hangs_are_named_as_such(cause: str, severity: str, begin: str) -> None:
    end = event("attempt_ended", outcome="failed", cause=cause, reason="It was so on rank 1.")
    found, sentence = headline(analysed(SyntheticJob().steps(), end))
    assert found == severity
    assert sentence.startswith(begin)


def stood_still(seconds: float = 200.0, column: int = 120) -> Steps:
    """A job in one step of which rank 1 stood in its loader, and all others waited."""
    steps = SyntheticJob().steps()
    phases = {name: values.copy() for name, values in steps.phases.items()}
    phases["data"][1, column] += seconds
    others = np.arange(RANKS) != 1
    phases["sync"][others, column] += seconds
    durations = steps.seconds.copy()
    durations[:, column] += seconds
    hung = np.zeros_like(durations)
    hung[:, column] = 1
    start = steps.start.copy()
    start[:, column + 1 :] += seconds
    return replace(steps, phases=phases, seconds=durations, hung=hung, start=start)


def test_a_standstill_is_a_state_of_its_own_and_makes_nobody_slow() -> None:
    analysis = analysed(stood_still())
    severity, sentence = headline(analysis)
    assert severity == "hung"
    assert sentence == "The job stood still for 3.3 min: rank 1 stood still in data in step 120."
    assert analysis.verdict.kind == "nobody"
    assert analysis.goodput.seconds["hang"] == pytest.approx(RANKS * 200, rel=0.01)
    assert analysis.goodput.seconds["data_wait"] < 100
    assert analysis.standstills[0].missing == (1,)


def test_a_hang_that_lasts_is_charged_until_the_end() -> None:
    hang = event("hang", 200.0, ranks=STANDING, missing=[1])
    end = event("attempt_ended", 300.0, outcome="failed", cause="hang", cause_ranks=[1],
                reason="It hung: rank 1 stood still in data after step 199.")  # fmt: skip
    steps = SyntheticJob().steps()
    members = tuple(replace(member, last_step=199) for member in steps.members)
    analysis = analysed(replace(steps, members=members), hang, end)
    assert headline(analysis) == (
        "hung", "The job hung: rank 1 stood still in data after step 199."
    )  # fmt: skip
    assert analysis.standstills[0].seconds == pytest.approx(230.0)
    assert analysis.goodput.seconds["hang"] == pytest.approx(RANKS * 230)


def test_a_hang_after_which_steps_follow_did_not_last() -> None:
    before = [entry | {"step": 150} for entry in STANDING]
    steps = SyntheticJob().steps()
    members = tuple(replace(member, last_step=199) for member in steps.members)
    analysis = analysed(
        replace(steps, members=members), event("hang", 200.0, ranks=before, missing=[1])
    )
    assert analysis.standstills == ()


@pytest.mark.parametrize(("first", "until"), [(40, "to the end"), (190, "to the end")])
def test_a_loss_that_is_not_finite_is_the_headline(first: int, until: str) -> None:
    steps = SLOW.steps()
    loss, bad = steps.loss.copy(), np.zeros_like(steps.loss)
    loss[:, first:], bad[:, first:] = np.nan, 1
    severity, sentence = headline(analysed(replace(steps, loss=loss, not_finite=bad)))
    assert severity == "not_finite"
    assert sentence.startswith(f"The loss is not finite from step {first} {until}: ")


def test_a_gradient_norm_that_overflows_is_not_a_loss_that_is_not_finite() -> None:
    steps = SyntheticJob().steps()
    bad = np.ones_like(steps.loss)
    assert headline(analysed(replace(steps, not_finite=bad)))[0] == "nobody"


def test_a_resume_from_an_older_checkpoint_comes_before_a_slow_rank() -> None:
    resumed = event("job_resumed", step=100, fallback=True, passed_over=2, steps_lost=40)
    severity, sentence = headline(analysed(SLOW.steps(), resumed))
    assert severity == "resumed"
    assert sentence == (
        "Resumed from an older checkpoint, step 100; 2 newer ones could not be used;"
        " 40 steps were done again."
    )
    newest = event("job_resumed", step=100, fallback=False)
    assert headline(analysed(SLOW.steps(), newest))[0] == "slow"


def test_what_costs_less_than_one_percent_is_a_remark() -> None:
    brief = SyntheticJob(
        num_steps=2000, slow=(Slow(rank=2, seconds=0.03, from_step=100, until_step=140),)
    )
    analysis = analysed(brief.steps())
    assert (analysis.verdict.kind, analysis.verdict.ranks) == ("nobody", ())
    first = next(findings(analysis))
    assert (first.severity, first.sentence) == (
        "nobody", "Nobody was slow by more than 1 % of the run."
    )  # fmt: skip
    assert first.details[0].startswith("Rank 2 was late in backward from step")


def saving(ranks: tuple[int, ...], seconds: float = 0.5) -> Steps:
    """A healthy job of which some ranks save for so long after each 20th step."""
    steps = SyntheticJob().steps()
    columns = np.arange(0, len(steps.numbers), 20)
    longer = steps.seconds.copy()
    longer[:, columns] += seconds
    checkpoint = np.zeros_like(steps.seconds)
    checkpoint[np.ix_(np.array(ranks), columns)] = seconds
    return replace(steps, seconds=longer, phases={**steps.phases, "checkpoint": checkpoint})


def test_checkpoints_of_one_rank_for_which_all_wait_are_the_cause_with_their_cost() -> None:
    severity, sentence = headline(analysed(saving((0,))))
    assert severity == "slow"
    assert sentence.startswith("All waited for checkpoints of rank 0, every 20 steps: ")


@pytest.mark.parametrize("steps", [saving(tuple(range(RANKS))), saving((0,), seconds=0.01)])
def test_checkpoints_of_all_ranks_and_cheap_ones_hold_up_nobody(steps: Steps) -> None:
    assert headline(analysed(steps))[0] == "nobody"


@pytest.mark.parametrize("gpu_uuid", ["", "GPU-1"])
def test_advice_on_slow_work_fits_ranks_without_a_gpu(gpu_uuid: str) -> None:
    steps = SLOW.steps()
    members = tuple(replace(member, gpu_uuid=gpu_uuid) for member in steps.members)
    advice = " ".join(step_advice(analysed(replace(steps, members=members))))
    assert ("other processes" in advice) == (not gpu_uuid)
    assert ("healthy GPU" in advice) == bool(gpu_uuid)


@pytest.mark.parametrize("has_pages", [True, False])
def test_a_job_that_failed_before_a_step_has_a_report(page_root: Path, *, has_pages: bool) -> None:
    job = job_folder(page_root, "early")
    for rank in range(2):
        path = page_path(page_root, "early", 0, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        if has_pages:
            page = PageWriter(path, RankIdentity(job_id="early", rank=rank, world_size=2), rows=4)
            page.heartbeat(1, PHASES.index("failed"))
            page.close()
            error = RankError(source="except_hook", type="ValueError", message=f"no data {rank}")
            write_error(path, error)
    if not has_pages:
        failed = {**FAILED, "exception": "ValueError: no data", "last_step": None}
        for kind, fields in (("job_started", {"world_size": 2}), ("attempt_ended", failed)):
            append_event(job, Event(kind=kind, job_id="early", attempt=0, fields=fields))
    result = CliRunner().invoke(report, [str(job), "--json", "-"])
    assert result.exit_code == 0, result.output
    payload = json.loads(result.output)
    assert payload["severity"] == "failed"
    assert "ValueError: no data" in payload["headline"]
    assert payload["steps"]["count"] == 0
    rendered = CliRunner().invoke(report, [str(job), "--html", str(page_root / "r.html")])
    assert rendered.exit_code == 0, rendered.output


def test_steps_in_which_nothing_was_seen_are_the_first_line_with_the_line_that_helps() -> None:
    steps = SyntheticJob().steps()
    nothing = np.zeros_like(steps.seconds)
    phases = dict.fromkeys(steps.phases, nothing) | {"other": steps.seconds}
    blind = analysed(replace(steps, phases=phases))
    severity, sentence = headline(blind)
    assert severity == "unknown"
    assert sentence.startswith("Nothing inside the steps was seen: give lockstep.attach(model, ")
    assert "lockstep instrument SCRIPT" in " ".join(step_advice(blind))


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


@pytest.mark.parametrize(
    ("signs", "sentence"),
    [
        ((), "--board needs a Prometheus; give its address"),
        (("--signs-from", "http://127.0.0.1:1"), "http://127.0.0.1:1 cannot be queried"),
    ],
)
def test_without_a_prometheus_that_answers_no_board_is_drawn_and_no_report_is_left(
    page_root: Path, tmp_path: Path, signs: tuple[str, ...], sentence: str
) -> None:
    SyntheticJob(job_id="j1").write(page_root)
    files = ("--html", str(tmp_path / "r.html"), "--board", str(tmp_path / "b.html"))
    done = run_report("j1", *files, *signs)
    assert done.exit_code == 2
    assert sentence in " ".join(done.output.split())
    assert not list(tmp_path.glob("*.html"))


def test_the_page_links_to_the_board_of_the_time_of_the_job(
    page_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SyntheticJob(job_id="j1").write(page_root)
    commands: list[list[str]] = []

    def draw(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        del options
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", draw)
    monkeypatch.setattr(node_series, "add_node_series", lambda recording, _: recording)
    page, path = tmp_path / "r.html", tmp_path / "boards" / "a b.html"
    done = run_report(
        "j1", "--html", str(page), "--board", str(path), "--signs-from", "http://127.0.0.1:1"
    )
    assert done.exit_code == 0, done.output
    assert 'href="boards/a%20b.html"' in page.read_text()
    assert f"written: {path}" in done.output
    options = dict(zip(commands[0][6::2], commands[0][7::2], strict=True))
    assert (options["--job"], options["--out"]) == ("j1", str(path))
    assert float(options["--from"]) < float(options["--to"])


def test_a_board_and_a_page_cannot_be_the_same_file() -> None:
    with pytest.raises(ValueError, match="is given for two formats"):
        Outputs(paths={"html": Path("a.html")}, board=Path("a.html"))
