"""What the feed is started with: one line names what is wrong."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from lockstep_ledger.commands.follow_kubernetes import follow_kubernetes
from lockstep_ledger.feeds.kubernetes.feed import Lease
from lockstep_ledger.feeds.kubernetes.server import ApiServer

URL = ("--url", "http://127.0.0.1:9")


def write_config(path: Path, server: str) -> Path:
    named = {"name": "x"}
    config = {
        "clusters": [named | {"cluster": {"server": server}}],
        "users": [named | {"user": {"token": "t"}}],
        "contexts": [named | {"context": {"cluster": "x", "user": "x"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


@pytest.mark.parametrize("text", ["a: [", "{}", '{"clusters": 3}', "", "[1]", "\x00"])
def test_a_kubeconfig_that_is_none_is_named_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text, encoding="utf-8")
    answer = CliRunner().invoke(follow_kubernetes, [*URL, "--kubeconfig", str(path)])
    [line] = [line for line in answer.stderr.splitlines() if line.startswith("Error")]
    assert answer.exit_code == 2
    assert f"{path} cannot be used: " in line


@pytest.mark.parametrize(
    ("option", "value"), [("--context", "nope"), ("--lease", "x"), ("--selector", "=")]
)
def test_options_that_are_wrong_are_named(tmp_path: Path, option: str, value: str) -> None:
    path = write_config(tmp_path / "config", "http://127.0.0.1:9")
    words = [*URL, "--kubeconfig", str(path), option, value]
    answer = CliRunner().invoke(follow_kubernetes, words)
    assert answer.exit_code == 2
    assert value in answer.stderr


def test_without_a_server_one_line_says_so_and_the_feed_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = ApiServer(write_config(tmp_path / "config", "http://127.0.0.1:9"))
    lease = Lease(server, "default", "feed", "me")
    assert [lease.hold(None) for _ in range(3)] == [False] * 3
    [record] = caplog.records
    assert "Connection refused" in record.getMessage()
