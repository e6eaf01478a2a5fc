"""``lockstep report --board``: a snapshot next to the report, or a sentence on why not."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from lockstep_reports.readers import node_series
from lockstep_reports.render.outputs import Outputs

from ..report_command import run_report
from ..synthetic_job import SyntheticJob


def test_without_a_prometheus_no_board_can_be_drawn(page_root: Path, tmp_path: Path) -> None:
    SyntheticJob(job_id="j1").write(page_root)
    done = run_report("j1", "--html", str(tmp_path / "r.html"), "--board", str(tmp_path / "b.html"))
    assert done.exit_code == 2
    assert "--board needs a Prometheus; give its address" in " ".join(done.output.split())
    assert not list(tmp_path.glob("*.html"))


def test_a_prometheus_that_is_away_is_named_and_no_report_is_left(
    page_root: Path, tmp_path: Path
) -> None:
    SyntheticJob(job_id="j1").write(page_root)
    files = ("--html", str(tmp_path / "r.html"), "--board", str(tmp_path / "b.html"))
    done = run_report("j1", *files, "--signs-from", "http://127.0.0.1:1")
    assert done.exit_code == 2
    assert "http://127.0.0.1:1 cannot be queried" in " ".join(done.output.split())
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
