import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from lockstep_alerts.stack.command import stack as stack_group
from lockstep_alerts.stack.servers import STATE_FILE, Running, stop

LOCKSTEP = (sys.executable, "-c", "from lockstep_cli.main import main; main()")


def lockstep(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [*LOCKSTEP, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.server
def test_a_port_that_is_taken_after_its_choice_is_chosen_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tmp_path / "first"
    first.touch()
    script = tmp_path / "prometheus"
    script.write_text(
        f"#!/bin/sh\nif rm {first}; then\n"
        "  echo 'err=\"listen tcp 127.0.0.1:9: bind: address already in use\"'; exit 1\nfi\n"
        f'exec {shutil.which("prometheus")} "$@"\n',
        encoding="utf-8",
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    started = lockstep("stack", "up", "--dir", tmp_path / "st")
    assert started.returncode == 0, started.stderr
    assert not first.exists()
    assert lockstep("stack", "down", "--dir", tmp_path / "st").returncode == 0


@pytest.mark.server
def test_a_server_whose_command_line_is_not_its_own_yet_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A program that is still being loaded from a slow disk has an empty command line.
    script = tmp_path / "prometheus"
    script.write_text(
        f"#!{sys.executable}\nimport os, sys\n"
        f"wait = 'import os, json, time; time.sleep(1); a = json.loads(os.environ[\"A\"])'\n"
        f"wait += '; os.execv(\"{shutil.which('prometheus')}\", a)'\n"
        "import json\nos.environ['A'] = json.dumps(sys.argv)\n"
        "os.execv(sys.executable, [sys.executable, '-c', wait])\n",
        encoding="utf-8",
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    started = lockstep("stack", "up", "--dir", tmp_path / "st")
    assert started.returncode == 0, started.stderr
    assert lockstep("stack", "down", "--dir", tmp_path / "st").returncode == 0


@pytest.mark.server
def test_when_one_server_cannot_start_none_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "prometheus"
    broken.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    folder = tmp_path / "st"
    done = lockstep("stack", "up", "--dir", folder)
    assert done.returncode == 2
    assert "prometheus did not become ready; its log is" in done.stderr
    assert not (folder / STATE_FILE).exists()
    left = [
        path
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if path.exists() and str(folder).encode() in path.read_bytes()
    ]
    assert not left


def test_a_process_that_took_over_the_number_is_left_alone() -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        stop(Running(url="http://127.0.0.1:1", pid=other.pid, command=("sleep", "61")))
        assert other.poll() is None
        other.kill()


def bad(*arguments: object) -> str:
    outcome = CliRunner().invoke(stack_group, list(map(str, arguments)))
    assert outcome.exit_code == 2, outcome.output
    return " ".join(outcome.output.split())


@pytest.mark.promtool
def test_a_bad_option_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "st"
    assert "--target 'no port' is not HOST:PORT" in bad(
        "up", "--dir", folder, "--target", "no port"
    )
    assert "is not a duration" in bad("up", "--dir", folder, "--interval", "5 seconds")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = bad("up", "--dir", folder, "--prometheus-port", port)
    assert f"--prometheus-port {port}: Address already in use" in message
    assert not folder.exists()


def test_a_missing_server_names_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    message = bad("up", "--dir", tmp_path / "st")
    assert "prometheus is not on PATH; install it (Debian package prometheus)" in message


@pytest.mark.promtool
def test_a_folder_that_cannot_be_or_is_damaged_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert "name a writable folder" in bad("up", "--dir", tmp_path / "file" / "st")
    (tmp_path / STATE_FILE).write_text("[]", encoding="utf-8")
    for word in ("up", "down", "status"):
        assert "was not written by stack up" in bad(word, "--dir", tmp_path)
    assert "no stack was started in it" in bad("down", "--dir", tmp_path / "none")
