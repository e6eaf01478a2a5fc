"""``lockstep top`` over rank pages: the rank that lags stands first, in any width."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_records.events.event import Event, append_event
from lockstep_records.files.jobs import page_path
from lockstep_records.page.layout import PHASES, SLOT
from lockstep_records.page.layout import ROW as PAGE_ROW
from lockstep_records.page.reader import read_newest, read_page, read_ring
from lockstep_records.page.writer import PageWriter, RankIdentity
from lockstep_reports.jobs_command import jobs
from lockstep_reports.top.command import top
from lockstep_reports.top.table import (
    RankRow,
    Snapshot,
    SnapshotView,
    lags,
    spark,
    state_of,
    worst_first,
)

from ..synthetic_job import Slow, SyntheticJob

ROW = RankRow(
    job_id="j", rank=0, node="n", state="training", phase="forward", step=7, lag_seconds=0.0,
    wait_seconds=0.01, step_seconds=0.1, tokens_per_second=100.0, loss=2.0, quiet_seconds=0.1,
    step_times=(0.1, 0.2),
)  # fmt: skip


def run(*arguments: str) -> Result:
    return CliRunner().invoke(top, list(arguments))


def drawn_lines(snapshot: Snapshot, width: int, height: int = 40) -> list[str]:
    console = Console(width=width, height=height, record=True, file=None, quiet=False)
    with console.capture() as captured:
        console.print(SnapshotView(snapshot))
    return captured.get().splitlines()


def test_the_rank_with_the_largest_lag_stands_first(page_root: Path) -> None:
    SyntheticJob(job_id="j1", slow=(Slow(rank=2),), nodes=2).write(page_root)
    result = run("j1", "--once")
    assert result.exit_code == 0, result.output
    columns, first = result.output.splitlines()[1:3]
    cells = dict(zip(columns.replace(", ms", "").split(), first.split(), strict=False))
    assert (cells["rank"], cells["node"], cells["state"]) == ("2", "node-1", "done")
    assert float(cells["lag"]) == pytest.approx(30, rel=0.1)


def test_a_node_shows_its_own_ranks_of_running_jobs(page_root: Path) -> None:
    SyntheticJob(job_id="over", nodes=2).write(page_root)
    for rank in range(2):
        write_running(page_root, rank)
    result = run("here", "--once")
    assert result.exit_code == 0, result.output
    assert "2 ranks" in result.output
    assert "node-" not in result.output
    assert "2 ranks" in run("--all", "--once").output


def test_without_a_job_the_newest_is_shown(page_root: Path) -> None:
    empty = run("--once")
    assert (empty.exit_code, "no job exists under" in empty.output) == (2, True)
    SyntheticJob(job_id="zz-over", nodes=2).write(page_root)
    write_running(page_root, 0)
    assert run("--once").output.startswith("live")
    both = run("zz-over", "--all", "--once")
    assert (both.exit_code, "leave out zz-over" in both.output) == (2, True)


def test_what_a_loop_does_not_tell_is_a_dash_and_no_zero(page_root: Path) -> None:
    write_running(page_root, 0, sync_seconds=0.0, tokens=0)
    output = run("live", "--once").output
    assert "tokens/s" not in output.splitlines()[0]
    columns, row = output.splitlines()[1:3]
    cells = dict(zip(columns.replace(", ms", "").split(), row.split(), strict=False))
    assert cells["waits"] == "-"


def write_running(root: Path, rank: int, *, sync_seconds: float = 0.0125, tokens: int = 64) -> None:
    path = page_path(root, "live", 0, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    identity = RankIdentity(job_id="live", rank=rank, world_size=2, node="here")
    page = PageWriter(path, identity, rows=8)
    phases = [0.0125] * 8
    phases[STEP_PHASES.index("sync")] = sync_seconds
    page.append(step=3, start_ns=0, seconds=0.1, phase_seconds=phases, tokens=tokens, samples=8)
    page.signed[SLOT.word("step")] = 3
    page.words[SLOT.word("present")] |= SLOT.presence["step"]
    page.heartbeat(time.monotonic_ns(), PHASES.index("sync" if rank else "forward"))
    page.commit(time.monotonic_ns())
    page.close()


@pytest.mark.parametrize("count", [1, 5, 8, 20])
def test_the_newest_rows_are_the_last_of_the_ring(page_root: Path, count: int) -> None:
    path = page_path(page_root, "ring", 0, 0)
    path.parent.mkdir(parents=True)
    page = PageWriter(path, RankIdentity(job_id="ring", rank=0, world_size=1), rows=8)
    for step in range(21):
        page.append(step=step, start_ns=0, seconds=0.1)
        page.commit(0)
    page.close()
    read = read_page(path)
    assert read_newest(read, count) == read_ring(read)[-count * PAGE_ROW.size :]


def test_failed_and_stalled_ranks_come_first_and_victims_after_them() -> None:
    rows = [
        replace(ROW, rank=0, lag_seconds=0.5),
        replace(ROW, rank=1, state="stalled", phase="sync"),
        replace(ROW, rank=2, state="stalled", phase="backward"),
        replace(ROW, rank=3, lag_seconds=None),
        replace(ROW, rank=4, state="failed"),
    ]
    assert [row.rank for row in worst_first(rows)] == [4, 2, 1, 0, 3]


def test_a_rank_is_stalled_after_twenty_of_its_steps_and_two_minutes() -> None:
    assert state_of("forward", 119, 0.1) == "training"
    assert state_of("forward", 121, 0.1) == "stalled"
    assert state_of("sync", 100, 10.0) == "training"
    assert state_of("sync", 201, 10.0) == "stalled"
    assert state_of("checkpoint", 1799, 0.1) == "checkpoint"
    assert state_of("checkpoint", 1801, 0.1) == "stalled"
    assert state_of("done", 1e6, 0.1) == "done"


def test_lag_is_own_work_beyond_the_median() -> None:
    own = np.array([[1.0, 1.0], [1.0, 2.0], [3.0, np.nan]])
    assert lags(own).tolist() == [-0.25, 0.25, 2.0]


@pytest.mark.parametrize("width", [40, 60, 80, 104, 160])
def test_a_frame_fits_the_terminal(width: int) -> None:
    rows = tuple(replace(ROW, rank=rank) for rank in range(5000))
    lines = drawn_lines(Snapshot(title="j", wall_seconds=0.0, rows=rows), width, height=24)
    assert all(len(line) <= width for line in lines)
    assert len(lines) <= 24
    assert any("not shown" in line for line in lines)


def test_what_came_from_pages_is_text() -> None:
    row = replace(ROW, node="[red]\x1b[31m", job_id="[bold]")
    text = "\n".join(drawn_lines(Snapshot(title="\x1b]0;x", wall_seconds=0.0, rows=(row,)), 120))
    assert "\x1b" not in text
    assert "[red]" in text


def test_a_spark_rises_with_its_values() -> None:
    assert spark((0.0, 0.5, 1.0), 1.0) == "▁▅█"
    assert spark((), 0.0) == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere",), "job 'nowhere' is not under"),
        (("--node", "n1"), "are for a Prometheus"),
        (("http://127.0.0.1:9",), "cannot be queried"),
        (("http://",), "names no host"),
        ((), "no job exists under"),
        (("--all",), "no rank of all jobs here"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(
    page_root: Path, arguments: tuple[str, ...], message: str
) -> None:
    assert page_root.is_dir()
    result = run(*arguments, "--once")
    assert result.exit_code == 2
    assert message in result.stderr


def run_jobs(*arguments: str) -> Result:
    result = CliRunner().invoke(jobs, list(arguments))
    assert result.exit_code == 0, result.output
    return result


def test_jobs_are_listed_newest_first_with_their_verdict(page_root: Path) -> None:
    SyntheticJob(job_id="zz-old", slow=(Slow(rank=2),)).write(page_root)
    for kind, seconds in (("job_started", 5.0), ("job_finished", 9.0)):
        fields = {"outcome": "failed"} if kind == "job_finished" else {}
        event = Event(kind=kind, job_id="zz-old", attempt=0, time=seconds, fields=fields)
        append_event(page_root / "jobs" / "zz-old", event)
    SyntheticJob(job_id="aa-new").write(page_root)
    newest, oldest = run_jobs().output.splitlines()[1:3]
    assert newest.split()[0] == "aa-new"
    assert oldest.split()[:2] == ["zz-old", "failed"]
    assert "ank 2" in run_jobs().output
    assert "ank 2" not in run_jobs("--no-verdict").output
    assert "zz-old" not in run_jobs("--count", "1", "--no-verdict").output


def test_what_is_unknown_is_absent_from_the_json(page_root: Path) -> None:
    (page_root / "jobs" / "empty").mkdir(parents=True)
    [document] = json.loads(run_jobs("--json").output)
    assert document["job_id"] == "empty"
    assert document["state"] == "starting"
    assert not {"outcome", "last_step", "headline", "end_seconds"} & set(document)


def test_a_node_without_jobs_says_so(tmp_path: Path) -> None:
    assert run_jobs("--dir", str(tmp_path)).output == f"no jobs under {tmp_path}/jobs\n"
    assert json.loads(run_jobs("--dir", str(tmp_path), "--json").output) == []


@pytest.mark.parametrize("has_event", [True, False])
def test_a_job_without_launcher_began_with_its_first_page(page_root: Path, has_event: bool) -> None:
    folder, birth = SyntheticJob(num_steps=20).write(page_root), time.time()
    # Files that ranks leave when they end, and what they say then, come after the steps.
    os.utime(folder / "0", (birth + 60, birth + 60))
    if has_event:
        event = Event(kind="job_resumed", job_id=folder.name, attempt=0, time=birth + 60, fields={})
        append_event(folder, event)
    [document] = json.loads(run_jobs("--json", "--no-verdict").output)
    assert document["start_seconds"] == pytest.approx(birth, abs=10)


def test_all_jobs_of_a_cluster_are_one_table_without_other_questions() -> None:
    both = run("live", "--cluster", "http://127.0.0.1:9", "--once")
    assert (both.exit_code, "leave out JOB" in both.output) == (2, True)
    away = run("--cluster", "http://127.0.0.1:9", "--once")
    assert (away.exit_code, "cannot be queried" in away.output) == (2, True)
