"""A configuration file holds the options of the agent, and a wrong one is refused."""

import os
import subprocess
from pathlib import Path

import pytest

from lockstep_agent.options import Options
from lockstep_agent.web.access_control import AccessControl

from ..in_process import refused_message
from ..running_agent import COMMAND


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('linsten = "x"', "unknown key 'linsten'; did you mean listen?"),
        ("tick = true", "tick is True; write a whole number and ms, s, m, h or d"),
        ("tick = 1", "tick is 1; write a whole number and ms, s, m, h or d"),
        ("detail = 1", "detail is 1; give true or false"),
        ("expect_gpus = 1.5", "expect_gpus is 1.5; give a whole number"),
        ('expect_port = "eth0"', "give a list"),
        ("node = 7", "give a text"),
        ("tick = ", "the text is not TOML"),
        ("once = true", "unknown key 'once'"),
        ('tick = "0s"', "0s is not in the range 50ms<=x<=1m"),
        ('without = ["nvlnk"]', "'nvlnk' is unknown; the nearest collectors are nvlink"),
        ('expect_port = ["eth0:fast"]', "is not DEVICE or DEVICE:GIGABITS"),
    ],
)
def test_a_wrong_configuration_file_is_one_sentence_and_exit_status_2(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    text: str,
    named: str,
) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(text)
    assert named in refused_message(monkeypatch, capsys, "agent", "--config", str(path))


def test_a_configuration_file_holds_every_option_and_the_command_line_comes_first(
    root: Path, tmp_path: Path
) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(
        f'cluster = "file"\nnode = "file"\nlisten = "127.0.0.1:1"\ndir = ["{root}"]\n'
        'tick = "1s"\ndetail = true\nexpect_gpus = 3\n'
    )
    environment = {**os.environ, "LOCKSTEP_NODE": "environment"}
    words = ["--config", str(path), "--listen", "127.0.0.1:0", "--cluster", "line", "--once"]
    done = subprocess.run(
        [*COMMAND, *words], capture_output=True, text=True, check=True, env=environment
    )
    assert 'cluster="line",node="environment"' in done.stdout
    assert 'cluster="line",counted_by="expected",node="environment"} 3.0' in done.stdout


@pytest.mark.parametrize(
    ("scrape_seconds", "tick_seconds"), [(5.0, 1.0), (8.0, 1.6), (15.0, 2.0), (60.0, 2.0)]
)
def test_a_tick_is_a_fifth_of_the_scrape_interval_within_one_and_two_seconds(
    scrape_seconds: float, tick_seconds: float
) -> None:
    assert Options(scrape_seconds=scrape_seconds).tick == tick_seconds
    assert Options(scrape_seconds=scrape_seconds, tick_seconds=0.5).tick == 0.5


def test_a_token_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.mkdir()
    with pytest.raises(ValueError, match="tokens cannot be read: Is a directory"):
        AccessControl(tokens=path)
