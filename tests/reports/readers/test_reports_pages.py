"""Real pages, written by the page writer, as the report's reader sees them."""

import gzip
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_records.events.event import Event, append_event
from lockstep_records.files.jobs import CANDIDATE_ROOTS, page_path
from lockstep_records.page.layout import IDENTITY
from lockstep_records.page.writer import PageWriter, RankIdentity
from lockstep_reports.command import report
from lockstep_reports.readers import ReadOptions, read_source
from lockstep_reports.readers.jobs import read
from lockstep_reports.readers.pages import NoStepsError, read_pages

from ..report_command import report_json
from ..synthetic_job import Slow, SyntheticJob


@pytest.fixture(name="root")
def _root() -> Iterator[Path]:
    """A folder on the tmpfs that pages need."""
    with tempfile.TemporaryDirectory(dir=CANDIDATE_ROOTS[-1].parent) as folder:
        yield Path(folder)


def test_pages_give_back_what_was_written(root: Path) -> None:
    job = SyntheticJob(ranks=3, nodes=3, num_steps=60, slow=(Slow(rank=1, from_step=20),))
    read, true = read_pages(job.write(root) / "0")[0], job.steps()
    assert read.ranks == (0, 1, 2)
    assert read.nodes == ("node-0", "node-1", "node-2")
    np.testing.assert_array_equal(read.numbers, true.numbers)
    for phase in STEP_PHASES:
        np.testing.assert_allclose(read.phases[phase], true.phases[phase], rtol=1e-6)
    np.testing.assert_allclose(read.last_arrival, true.last_arrival, atol=0.01)
    np.testing.assert_allclose(np.diff(read.last_arrival), np.diff(true.last_arrival), atol=1e-6)
    np.testing.assert_allclose(read.loss, 2.5)


def test_ranks_are_aligned_by_step_number_and_gaps_are_unknown(root: Path) -> None:
    job = SyntheticJob(ranks=2, num_steps=50)
    folder = job.write(root, skip=(1,))
    late = SyntheticJob(ranks=2, num_steps=30)
    late.write(root, skip=(0,))
    steps = read_pages(folder / "0")[0]
    assert steps.seconds.shape == (2, 50)
    assert not np.isnan(steps.seconds[0]).any()
    assert np.isnan(steps.seconds[1, 30:]).all()


def test_only_the_newest_steps_are_kept_when_there_are_too_many(root: Path) -> None:
    steps = read_pages(SyntheticJob(ranks=2, num_steps=50).write(root) / "0", max_cells=40)[0]
    assert list(steps.numbers) == list(range(30, 50))
    assert steps.notes == ("Only the newest 20 of 50 steps are judged.",)


def test_a_damaged_page_is_told_and_the_rest_goes_on(root: Path) -> None:
    folder = SyntheticJob(ranks=3, num_steps=50).write(root)
    damaged = page_path(root, "synthetic", 0, 1)
    with damaged.open("r+b") as file:
        file.truncate(20_000)
    steps = read_pages(folder / "0")[0]
    assert steps.missing_ranks == (1,)
    assert "rank-00001.page" in steps.notes[0]


def test_an_attempt_without_a_readable_page_is_refused(root: Path) -> None:
    folder = SyntheticJob(ranks=1, num_steps=5).write(root)
    page_path(root, "synthetic", 0, 0).write_bytes(b"nonsense")
    with pytest.raises(NoStepsError, match="its identity alone takes"):
        read_pages(folder / "0")[0]


def test_rows_that_cannot_be_true_are_left_out(root: Path) -> None:
    path = page_path(root, "wild", 0, 0)
    path.parent.mkdir(parents=True)
    page = PageWriter(path, RankIdentity(job_id="wild", rank=0, world_size=1), rows=16)
    good = {"seconds": 0.5, "phase_seconds": [0.0] * len(STEP_PHASES), "start_ns": 2**62}
    nan = float("nan")
    wild: list[dict[str, Any]] = [
        *({"seconds": value} for value in (nan, float("inf"), -1.0, 1e30)),
        *({"phase_seconds": [v] + [0.0] * 7} for v in (nan, -0.1, 3e38)),
        *({"step": value} for value in (-1, 2**62)),
        {"start_ns": -(2**63)},
        {"flags": 2**32 - 1},
    ]
    for step, fields in enumerate([*wild, {}]):
        page.append(**{"step": step, **good, **fields})
    page.commit(0)
    page.close()
    steps = read_pages(path.parent)[0]
    assert list(steps.numbers) == [len(wild)]
    assert np.isnan(steps.start).all()
    assert f"Left out: {len(wild)} rows" in " ".join(steps.notes)


def test_the_newest_attempt_with_steps_is_read_and_the_others_told(root: Path) -> None:
    for attempt, num_steps in ((0, 50), (1, 60)):
        SyntheticJob(ranks=2, num_steps=num_steps, attempt=attempt).write(root)
    job = root / "jobs" / "synthetic"
    (job / "2").mkdir()
    for attempt in (0, 1):
        append_event(job, Event(kind="attempt_started", job_id="synthetic", attempt=attempt))
    ended = Event(
        kind="attempt_ended", job_id="synthetic", attempt=1, fields={"outcome": "succeeded"}
    )
    append_event(job, ended)
    recording = read(job, ReadOptions())
    assert recording.steps.attempt == 1
    assert [(a.number, a.outcome) for a in recording.attempts] == [
        (0, "failed"),
        (1, "succeeded"),
        (2, None),
    ]
    assert read(job, ReadOptions(attempt=0)).steps.attempt == 0
    with pytest.raises(ValueError, match=r"attempt 7 is not in .*; attempts there: 0, 1, 2"):
        read(job, ReadOptions(attempt=7))
    shutil.rmtree(job / "0")
    shutil.rmtree(job / "1")
    with pytest.raises(NoStepsError, match="no page of attempt"):
        read(job, ReadOptions())


def test_a_page_given_for_a_job_is_refused_by_its_version_else_for_its_folder(root: Path) -> None:
    page = SyntheticJob(ranks=1, num_steps=5).write(root) / "0" / "rank-00000.page"
    with pytest.raises(ValueError, match="page of one rank"):
        read_source(str(page), ReadOptions())
    with page.open("r+b") as file:
        file.seek(IDENTITY.offsets["version"])
        file.write(b"\x09")
    with pytest.raises(ValueError, match="version 9"):
        read_source(str(page), ReadOptions())


FIXTURES = Path(__file__).parents[2] / "fixtures"


def recording(part: str) -> Path:
    (path,) = [
        p for folder in FIXTURES.glob("mlperf-*") for p in folder.glob("*.gz") if part in p.name
    ]
    return path


def spikes(payload: dict[str, Any]) -> dict[int, float]:
    return {spike["index"]: spike["ratio"] for spike in payload["steps"]["spikes"]}


def test_spikes_at_every_thousandth_step_are_found() -> None:
    payload = report_json(recording("Cisco"))
    assert (payload["world_size"], payload["steps"]["count"]) == (64, 3430)
    assert payload["steps"]["median_seconds"] == pytest.approx(0.720, abs=5e-4)
    for index, ratio in ((1002, 70.8), (2005, 8.0), (3008, 7.8)):
        assert spikes(payload)[index] == pytest.approx(ratio, abs=0.06)
    assert any("means over a block" in note for note in payload["notes"])


def test_a_spike_and_a_long_start_up_are_reported() -> None:
    payload = report_json(recording("h200_n128"))
    assert spikes(payload)[41] == pytest.approx(1.36, abs=5e-3)
    assert payload["startup_seconds"] == pytest.approx(917, abs=0.5)


def test_a_log_without_step_times_still_has_its_start_up() -> None:
    payload = report_json(recording("n1452"))
    assert payload["world_size"] == 11616
    assert payload["startup_seconds"] == pytest.approx(832, abs=0.5)
    assert payload["run_seconds"] == pytest.approx(207.1, abs=0.05)
    assert (payload["steps"]["count"], payload["steps"]["median_seconds"]) == (0, None)


def test_a_folder_of_logs_is_one_job(tmp_path: Path) -> None:
    text = (FIXTURES / "joblogs/gpu_oom_one_rank_others_time_out.log").read_text()
    for rank in range(8):
        lines = [line for line in text.split("\n") if line.startswith(f"[rank{rank}]")]
        bare = "\n".join(line.partition("]: ")[2] or line for line in lines)
        path = tmp_path / "attempt_0" / str(rank) / "stderr.log.gz"
        path.parent.mkdir(parents=True)
        path.write_bytes(gzip.compress(bare.encode()))
    payload = report_json(tmp_path)
    assert (payload["source"]["files"], payload["outcome"]) == (8, "failed")
    assert (payload["verdict"]["cause"], payload["verdict"]["ranks"]) == ("gpu_oom", [3])


def test_zstd_and_broken_gzip_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    text = (FIXTURES / "joblogs/ecc.log").read_bytes()
    complete = tmp_path / "whole.log.zst"
    complete.write_bytes(zstandard.compress(text))
    assert report_json(complete)["verdict"]["ranks"] == [11]
    broken = tmp_path / "broken.log.gz"
    packed = gzip.compress(text * 40)
    broken.write_bytes(packed[: len(packed) // 2])
    payload = report_json(broken)
    assert payload["verdict"]["cause"] == "gpu_fault"
    assert any("breaks off" in note for note in payload["notes"])


def test_page_and_terminal_show_the_first_cause(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    path = tmp_path / "hostile.log"
    text = (FIXTURES / "joblogs/ecc.log").read_text()
    path.write_text(text.replace("loss.item()", "<script>alert(1)</script>") + "[rank1]: <b>\n")
    result = CliRunner().invoke(report, [str(path), "--html", str(page)])
    assert result.exit_code == 0
    assert "rank 11 was the first cause" in result.stdout
    html = page.read_text()
    assert 'class="marked"' in html
    assert "<script" not in html
    assert "http" not in html.replace("http-equiv", "")


def test_what_is_no_log_is_refused_by_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "image.bin"
    path.write_bytes(bytes(range(256)) * 64)
    result = CliRunner().invoke(report, [str(path), "--json", "-"])
    assert result.exit_code == 2
    assert "of no kind" in result.output


def test_an_error_of_every_rank_names_none() -> None:
    payload = report_json(recording("bert"))
    verdict = payload["verdict"]
    assert (payload["outcome"], payload["failure_class"]) == ("failed", "user")
    assert (verdict["kind"], verdict["ranks"], verdict["cause"]) == ("workload", [], "data_error")
    assert "packed_input_len" in payload["first_cause"]["text"]
    assert payload["run_seconds"] == pytest.approx(0, abs=0.1)


def test_warnings_of_a_healthy_run_that_leaves_name_nobody() -> None:
    payload = report_json(recording("Dell"))
    assert (payload["outcome"], payload["verdict"]["kind"]) == ("succeeded", "nobody")
    assert payload["world_size"] == 16


def test_a_log_that_breaks_off_promises_nothing(tmp_path: Path) -> None:
    text = gzip.decompress(recording("Cisco").read_bytes())
    (tmp_path / "cut.log").write_bytes(text[: int(0.4 * len(text))])
    payload = report_json(tmp_path / "cut.log")
    assert payload["outcome"] in {"unknown", "failed"}
    assert payload["verdict"]["ranks"] == []
