"""Every command and subcommand answers what it cannot use, or cannot reach, without a traceback."""

import json
import logging
import os
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from sample_pages import written_page

from lockstep_agent.doctor import checkup
from lockstep_cli.main import group, main
from lockstep_ledger.tables import print_table
from lockstep_records.page.layout import IDENTITY, VERSION
from lockstep_records.text.printable import SafeLogRecord, safe_lines

REPOSITORY = Path(__file__).parents[2]
NOWHERE = "http://127.0.0.1:1/"
CHOSEN = {"what": "jobs", "month": "2026-01", "prometheus": NOWHERE, "url": NOWHERE}
# what runs until it is stopped, or starts servers and ranks, is refused by one more option
ENDLESS = (
    "agent", "demo", "gameday", "dashboards serve", "ledger serve", "ledger follow slurm",
    "stack up",
)  # fmt: skip
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


LOCKSTEP = str(Path(sys.executable).parent / "lockstep")
OTHER_VERSION = VERSION + 9


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(group, [str(word) for word in arguments], standalone_mode=False)


def refusal(*arguments: object) -> str:
    """The sentence by which a command refuses; any other end fails the test."""
    error = invoke(*arguments).exception
    assert isinstance(error, click.ClickException | OSError), repr(error)
    if isinstance(error, click.ClickException):
        assert error.exit_code == 2
        return error.format_message()
    return str(error)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The store of a ledger without jobs."""
    events = tmp_path / "events.jsonl"
    events.touch()
    path = tmp_path / "ledger.db"
    assert invoke("ledger", "import", "--store", path, events).exception is None
    return path


def test_the_version_of_a_page_is_named_before_all_else_that_is_wrong(memory: Path) -> None:
    page = written_page(memory, steps=3)
    with page.open("r+b") as file:
        file.seek(IDENTITY.offsets["version"])
        file.write(struct.pack("<I", OTHER_VERSION))  # the checksum does not hold, rows are missing
        file.truncate(5_000)
    assert f"version {OTHER_VERSION}" in refusal("page", page)


@pytest.mark.parametrize("words", [("report",), ("page",)])
def test_a_job_of_pages_of_another_version_is_answered_by_that_version(
    memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    attempt = memory / "job" / "0"
    attempt.mkdir(parents=True)
    page = written_page(attempt, steps=3)
    with page.open("r+b") as file:
        file.seek(IDENTITY.offsets["version"])
        file.write(struct.pack("<I", OTHER_VERSION))
    events = [
        {"kind": kind, "id": kind, "job_id": "job", "attempt": 0, "time": 1.0, "fields": fields}
        for kind, fields in (("job_started", {}), ("attempt_ended", {"outcome": "failed"}))
    ]
    (memory / "job" / "events.jsonl").write_text("\n".join(map(json.dumps, events)) + "\n")
    answer = invoke(*words, memory / "job")
    words_of_it = " ".join(answer.output.split())
    assert answer.exception is None
    assert f"version {OTHER_VERSION}" in words_of_it


@pytest.mark.parametrize(
    "words",
    [("page",), ("report",), ("top", "--once"), ("switch",), ("profile",), ("instrument",)],
    ids=" ".join,
)
def test_a_circle_of_links_is_refused_by_its_name(tmp_path: Path, words: tuple[str, ...]) -> None:
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    assert "circle" in refusal(*words, circle)


@pytest.mark.parametrize(
    "words",
    [
        ("costs", "--month", "9999-12"),
        ("costs", "--month", "0001-01"),
        ("costs", "--from", "9999-12-01"),
        ("costs", "--from", "9999-12-01", "--to", "9999-12-31"),
        ("statement", "--month", "9999-12"),
        ("review", "--week", "9999-W52"),
        ("review", "--week", "0001-W01"),
        ("review", "--week", "2026-W54"),
    ],
    ids=" ".join,
)
def test_days_at_the_ends_of_the_calendar_are_refused(store: Path, words: tuple[str, ...]) -> None:
    message = refusal("ledger", words[0], "--store", store, *words[1:])
    assert words[2] in message


def test_an_export_never_takes_the_place_of_a_device_or_a_pipe(store: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert str(pipe) in refusal("ledger", "export", "--store", store, "jobs", pipe)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("name", ["nosuch", "", "GPU", " gpu", "gpu,net", "gpu\x1b[31m"])
def test_an_unknown_collector_is_refused_on_the_command_line_and_in_the_file(
    tmp_path: Path, name: str
) -> None:
    config = tmp_path / "agent.toml"
    config.write_text(f"without = [{json.dumps(name)}]\n")
    for words in (("--without", name), ("--config", config)):
        assert "--without" in refusal("agent", "--once", "--state", tmp_path, *words)


@pytest.mark.parametrize("words", [("--version",), ("--help",)])
def test_a_closed_output_is_no_traceback(words: tuple[str, ...]) -> None:
    script = 'exec "$0" "$@" >&-'
    done = subprocess.run(
        ["sh", "-c", script, LOCKSTEP, *words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_disk_is_one_sentence() -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [LOCKSTEP, "--version"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr.startswith("lockstep: ")
    assert done.stderr.count("\n") == 1


HOSTILE = "\x1b]0;owned\x07\x1b[2Jname\r\x9b31m\u202e[red]x[/red]"


def obeys(output: str) -> bool:
    """Whether a terminal would do more with an output than to show it."""
    return not all(line.isprintable() for line in output.split("\n"))


@pytest.mark.parametrize(
    "arguments",
    [
        ("ledger", "job", HOSTILE, "--store", "/nowhere"),
        ("ledger", "jobs", "--store", f"/nowhere/{HOSTILE}"),
        ("ledger", "jobs", "--store", f"postgresql://u:p@hunter2@host/{HOSTILE}"),
        ("doctor", "--url", f"http://me:hunter2@127.0.0.1:1/{HOSTILE}"),
        ("page", HOSTILE),
        ("page", f"/nowhere/{HOSTILE}"),
        (HOSTILE,),
        ("ledger", "import", "/dev/null", "--url", "http://me:hunter2@127.0.0.1:1"),
    ],
)
def test_an_error_is_printable_and_shows_no_password(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["lockstep", *arguments])
    with pytest.raises(SystemExit):
        main()
    output = "".join(capsys.readouterr())
    assert not obeys(output)
    assert "hunter2" not in output


def test_a_table_shows_texts_of_others_as_they_are_and_obeys_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(HOSTILE, ("job",), [(HOSTILE,), ({"reason": HOSTILE},), ("failed",)])
    output = capsys.readouterr().out
    assert not obeys(output)
    assert "[red]x[/red]" in output
    assert "failed" in output


def test_the_verdicts_of_another_agent_are_printable(capsys: pytest.CaptureFixture[str]) -> None:
    part = {"kind": HOSTILE, "name": HOSTILE, "verdict": HOSTILE, "reasons": [HOSTILE]}
    checkup._print({"node": HOSTILE, "parts": [part], "verdict": "ok", "reasons": []}, [])
    output = capsys.readouterr().out
    assert not obeys(output)


def test_a_line_of_the_log_is_printable_and_shows_no_password() -> None:
    record = SafeLogRecord(
        "lockstep", logging.WARNING, "", 1, "job=%s url=%s", (HOSTILE, "s3://k:hunter2@h"), None
    )
    assert not obeys(record.getMessage())
    assert "hunter2" not in record.getMessage()
    assert safe_lines("  indented\n\nlast") == "  indented\n\nlast"
