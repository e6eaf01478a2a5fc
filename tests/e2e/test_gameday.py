"""The shortest useful rows of the game day: real servers, real ranks, real notifications."""

import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

SERVERS = ("prometheus", "amtool", "cc")


@pytest.mark.e2e
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    not all(shutil.which(name) for name in SERVERS), reason="a server or the compiler is missing"
)
def test_the_quick_rows_are_notified_as_expected_and_nothing_is_left(tmp_path: Path) -> None:
    out, junit = tmp_path / "out", tmp_path / "junit.xml"
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "lockstep_cli.main", "gameday", "--quick", "--ranks", "2"),
            *("--parallel", "5", "--seed", "1", "--keep", str(out), "--junit", str(junit)),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=570,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    suite = ET.parse(junit).getroot()  # noqa: S314  # written by the command
    assert [case.get("name") for case in suite]
    assert not list(suite.iter("failure"))
    running = subprocess.run(["ps", "ax", "-o", "args"], check=True, capture_output=True, text=True)
    assert str(out) not in running.stdout
