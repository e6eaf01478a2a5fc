"""The whole path as a person walks it: `lockstep demo`, real servers, real training, real pages."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SERVERS = ("prometheus", "amtool")


@pytest.mark.e2e
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    not all(shutil.which(name) for name in SERVERS), reason="Prometheus or Alertmanager is missing"
)
def test_the_demo_pages_names_and_reports_the_slow_rank_and_leaves_nothing_running(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    ended = subprocess.run(
        [sys.executable, "-m", "lockstep_cli.main", "demo", "--interval", "5s", "--out", str(out)],
        check=False,
        capture_output=True,
        text=True,
        timeout=570,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "FAIL" not in ended.stdout
    verdict = json.loads((out / "report.json").read_text())["verdict"]
    assert verdict["kind"] == "rank"
    assert verdict["phase"] == "backward"
    assert (out / "boards" / "job.json").exists()
    assert 'href="snapshot.html"' in (out / "report.html").read_text()
    assert "Lockstep: job</h1>" in (out / "snapshot.html").read_text()
    running = subprocess.run(["ps", "ax", "-o", "args"], check=True, capture_output=True, text=True)
    assert str(out) not in running.stdout
