"""`lockstep page` as people call it: a page as text, or one sentence and exit status 2."""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner
from sample_pages import IDENTITY as NAMED
from sample_pages import write_step, written_page

from lockstep.commands.profile import profile
from lockstep_cli.main import main
from lockstep_records.events.event import Event, append_event
from lockstep_records.files.jobs import page_path
from lockstep_records.page.layout import IDENTITY, PHASES, SLOT, VERSION
from lockstep_records.page.writer import PageWriter, RankIdentity

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
        (other_version, f"format version 10, this reader wants {VERSION}"),
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


def written_job(root: Path, *phases: str) -> Path:
    """A job with a page for each of its ranks, that stands in a phase."""
    for rank, phase in enumerate(phases):
        path = page_path(root, "job-a", 0, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        identity = RankIdentity(job_id="job-a", rank=rank, world_size=len(phases))
        page = PageWriter(path, identity, rows=4)
        page.heartbeat(time.monotonic_ns(), PHASES.index(phase))
        page.commit(time.monotonic_ns())
        page.close()
    return root / "jobs" / "job-a"


def write_events(job: Path, *kinds: str) -> None:
    for kind in kinds:
        append_event(job, Event(kind=kind, job_id="job-a", attempt=0))


@pytest.mark.parametrize(
    ("phases", "events"),
    [
        (("done", "done"), ()),
        (("failed", "done"), ("job_started",)),
        (("backward", "sync"), ("job_started", "job_finished")),
        ((), ("job_started", "job_finished")),
    ],
    ids=["all done", "all ended", "killed, as its launcher tells", "no page is left"],
)
def test_a_job_that_has_ended_is_refused_in_one_sentence(
    memory: Path, phases: tuple[str, ...], events: tuple[str, ...]
) -> None:
    job = written_job(memory, *phases)
    job.mkdir(parents=True, exist_ok=True)
    write_events(job, *events)
    refused = CliRunner().invoke(profile, [str(job) if phases else "job-a"], env=_at(memory))
    assert refused.exit_code == 2, refused.output
    (line,) = [line for line in refused.output.splitlines() if line.startswith("Error")]
    assert line == (
        "Error: job job-a has ended, and only steps to come are traced; name one that runs"
    )
    assert not (job / "switches.json").exists()


def test_a_job_that_was_started_again_gets_the_request(memory: Path) -> None:
    job = written_job(memory, "forward")
    write_events(job, "job_started", "job_finished", "job_started")
    result = CliRunner().invoke(profile, [str(job), "--wait", "1s"], standalone_mode=False)
    assert (result.return_value, result.output) == (
        1,
        "rank 0: no answer within 1 s; does it still step?\n",
    )


def test_of_a_job_with_ended_ranks_only_the_others_get_the_request(memory: Path) -> None:
    job = written_job(memory, "done", "forward", "failed")
    result = CliRunner().invoke(profile, [str(job), "--wait", "1s"], standalone_mode=False)
    assert result.return_value == 1
    assert "rank 1: no answer" in result.output
    assert "rank 0" not in result.output
    refused = CliRunner().invoke(profile, [str(job), "--ranks", "0,1"])
    assert refused.exit_code == 2
    assert "--ranks: not all of them run on this node; here: 1" in refused.output


def test_a_job_whose_ranks_have_yet_to_come_has_not_ended(memory: Path) -> None:
    job = written_job(memory)
    (job / "0").mkdir(parents=True)
    write_events(job, "job_started")
    refused = CliRunner().invoke(profile, [str(job)])
    assert refused.exit_code == 2
    assert "--ranks: not all of them run on this node; here: none" in refused.output


def _at(root: Path) -> dict[str, str]:
    return {"LOCKSTEP_DIR": str(root)}
