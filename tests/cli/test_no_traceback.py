"""Every command and subcommand answers what it cannot use, or cannot reach, without a traceback."""

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import click
import pytest

from lockstep_cli.main import main

REPOSITORY = Path(__file__).parents[2]
NOWHERE = "http://127.0.0.1:1/"
CHOSEN = {"what": "jobs", "month": "2026-01", "prometheus": NOWHERE, "url": NOWHERE}
# what runs until it is stopped, or starts servers and ranks, is refused by one more option
ENDLESS = ("agent", "demo", "dashboards serve", "ledger serve", "ledger follow slurm", "stack up")
RANKS = ("run", "train", "simulate")


def leaves(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            assert found is not None
            yield from leaves(found, f"{name} {inner}")
    else:
        yield name, command


COMMANDS = {
    name: command
    for entry in entry_points(group="lockstep.commands")
    for name, command in leaves(entry.load(), entry.name)
}


def words_of(name: str, bad: str) -> Iterator[list[str]]:
    """The command with a bad argument, and with each of its paths as a bad option."""
    command = COMMANDS[name]
    options = [each for each in command.params if isinstance(each, click.Option)]
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    required = [
        word
        for each in options
        if each.required and each.name
        for word in (each.opts[0], CHOSEN.get(each.name, bad))
    ]
    required += [CHOSEN.get(each.name, bad) for each in arguments if each.name]
    required += ["--duration", "200ms"] if "--duration" in {x.opts[0] for x in options} else []
    if name not in (*ENDLESS, *RANKS) and required:
        yield required
    closing = ["--nosuch"] if name in (*ENDLESS, *RANKS) else []
    for each in options:
        if isinstance(each.type, click.Path) and not each.required:
            yield [each.opts[0], bad, *closing, *required]


@pytest.mark.parametrize("bad", ["folder", "garbage", "/proc/none/file"])
@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_answers_with_a_traceback(
    name: str,
    bad: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "garbage").write_bytes(b"\xff\xfe{[garbage\0\n" * 20)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOCKSTEP_DIR", str(tmp_path / "folder"))
    monkeypatch.setenv("LOCKSTEP_LEDGER_DSN", str(tmp_path / "ledger.sqlite"))
    for words in words_of(name, bad):
        monkeypatch.setattr(sys, "argv", ["lockstep", *name.split(), *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code in {0, 1, 2}, words
        assert "Traceback" not in "".join(capsys.readouterr()), words


def test_a_closed_pipe_ends_a_command_without_a_word() -> None:
    command = f"{sys.executable} -m lockstep_cli.main alerts list | head -n 1"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert done.stderr == ""
