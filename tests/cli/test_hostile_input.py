"""Input that nobody means: each command answers with one sentence, none with a traceback."""

import json
import os
import stat
import struct
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from sample_pages import written_page

from lockstep_cli.main import group
from lockstep_records.page.layout import IDENTITY, VERSION

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


def test_two_rates_for_the_same_jobs_from_the_same_day_are_refused_in_any_case(
    store: Path, tmp_path: Path
) -> None:
    card = tmp_path / "card.yaml"
    row = "{{from: 2026-01-01, gpu_model: '{}', price_per_gpu_hour: 1, currency: EUR}}"
    card.write_text(f"rates:\n  - {row.format('*H200*')}\n  - {row.format('*h200*')}\n")
    message = refusal("ledger", "costs", "--store", store, "--rates", card)
    assert "rates[1]" in message
    assert ": :" not in message


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
