"""`lockstep page` as people call it: a page as text, or one sentence and exit status 2."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from sample_pages import IDENTITY as NAMED
from sample_pages import write_step, written_page

from lockstep_cli.main import main
from lockstep_records.page.layout import IDENTITY, SLOT, VERSION
from lockstep_records.page.writer import PageWriter

PrintPage = Callable[..., tuple[int, str, str]]


@pytest.fixture(name="print_page")
def _print_page(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> PrintPage:
    """Calls the command in this process: exit status, stdout and stderr."""

    def print_page(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["lockstep", "page", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return print_page


def refused(name: str) -> NoReturn:
    raise AssertionError(f"{name} is no number of JSON")


def test_a_good_page_is_printed_as_text(memory: Path, print_page: PrintPage) -> None:
    status, text, errors = print_page(written_page(memory, steps=20, rows=16))
    assert (status, errors) == (0, "")
    for words in ("job-a", "backward 10", "rows: 16 valid, the last 5", "step 19: 875.00 ms ="):
        assert words in text


def test_a_good_page_is_printed_as_strict_json(memory: Path, print_page: PrintPage) -> None:
    writer = PageWriter(memory / "rank-00003.page", NAMED, 4)
    write_step(writer)
    writer.words[SLOT.word("present")] |= SLOT.presence["loss"]
    writer.floats[SLOT.word("loss")] = float("nan")
    writer.commit(1)
    status, text, errors = print_page(writer.path, "--json")
    writer.close()
    assert (status, errors) == (0, "")
    page = json.loads(text, parse_constant=refused)
    assert (page["identity"]["job_id"], page["identity"]["rank"]) == ("job-a", 3)
    assert (page["state"]["steps"], page["state"]["loss"]) == (1, "nan")
    assert page["state"]["gradient_norm"] is None
    assert page["rows"][0]["phase_seconds"]["backward"] == 0.5


def other_version(page: Path) -> None:
    with page.open("r+b") as file:
        file.seek(IDENTITY.offsets["version"])
        file.write(b"\x0a")


def truncate(page: Path) -> None:
    os.truncate(page, 1000)


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (
            other_version,
            f"format version 10, this reader wants {VERSION}",
        ),
        (truncate, "has 1000 bytes, 16 rows need"),
        (Path.unlink, "cannot be opened: No such file"),
    ],
)
def test_a_page_that_cannot_be_read_ends_in_one_sentence(
    memory: Path, print_page: PrintPage, harm: object, sentence: str
) -> None:
    page = written_page(memory, steps=1)
    assert callable(harm)
    harm(page)
    for words in ((page,), (page, "--json")):
        status, text, errors = print_page(*words)
        assert (status, text) == (2, "")
        assert sentence in errors
        assert str(page) in errors
        assert errors.count("\n") == 1
