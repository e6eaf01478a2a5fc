"""No command lets a terminal obey what others wrote, or prints a secret in an error."""

import logging
import sys

import pytest

from lockstep_agent.doctor import checkup
from lockstep_cli.main import main
from lockstep_ledger.tables import print_table
from lockstep_records.text.printable import SafeLogRecord, safe_lines

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
