"""Reports on recorded logs of real runs agree with what happened."""

import gzip
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lockstep_reports.command import report

from ..report_command import report_json

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
