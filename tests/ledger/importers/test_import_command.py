"""Files of other sources in the store: once, with the truth, however often they are imported."""

import gzip
import json
import os
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from servers import Answered, Answering, serving
from sqlalchemy import select

from lockstep_ledger.command import ledger
from lockstep_ledger.store.database import open_store
from lockstep_ledger.store.tables import jobs

from ..model.stored import differences
from ..service import ledger_process
from ..stories import Story

FIXTURES = Path(__file__).parents[2] / "fixtures"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(ledger, [str(argument) for argument in arguments])


def import_files(store: Path, *arguments: object) -> str:
    result = run("import", "--store", store, *arguments)
    assert result.exit_code == 0, result.output
    return result.output


def rows(store: Path) -> list[tuple[str | None, str, float]]:
    """Outcome, status and GPU-seconds of each job; the counters are the model's."""
    engine = open_store(str(store))
    try:
        assert not differences(engine)
        with engine.connect() as connection:
            columns = select(jobs.c.outcome, jobs.c.status, jobs.c.gpu_seconds)
            return [(row[0], row[1], row[2]) for row in connection.execute(columns)]
    finally:
        engine.dispose()


def test_the_night_of_slurm_is_306_jobs_in_the_store_also_the_second_time(tmp_path: Path) -> None:
    store, text = tmp_path / "ledger.db", tmp_path / "sacct.txt"
    packed = FIXTURES / "slurm-gcm/sample-sacct-output-midnight-edge-case.txt.gz"
    text.write_bytes(gzip.decompress(packed.read_bytes()))
    for _ in range(2):
        import_files(store, "--from", "sacct", text)
    assert Counter((outcome, status) for outcome, status, _ in rows(store)) == {
        ("failed", "finished"): 259 + 2, ("cancelled", "finished"): 24,
        ("succeeded", "finished"): 18, ("time_limit", "finished"): 1, (None, "pending"): 2,
    }  # fmt: skip


def test_all_logs_of_mlperf_are_one_job_each(tmp_path: Path) -> None:
    store = tmp_path / "ledger.db"
    logs = [
        *(FIXTURES / "mlperf-incidents").glob("*.gz"),
        *(FIXTURES / "mlperf-steps").glob("*.gz"),
    ]
    import_files(store, "--from", "logs", *logs)
    outcomes = Counter(outcome for outcome, _, _ in rows(store))
    assert outcomes == {"succeeded": 6, "failed": 2}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--from", "sacct"), "no table of Slurm begins with"),
        (("--from", "logs"), "no line with a time"),
        (("--from", "events"), "line 1: it is not JSON"),
        (("--from", "sacct", "--timezone", "../x"), "'../x' is not a time zone of this machine"),
    ],
)
def test_a_file_of_another_kind_is_refused_by_one_sentence(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    path = tmp_path / "file.log"
    path.write_text("hello\n")
    result = run("import", "--store", tmp_path / "ledger.db", *arguments, path)
    assert result.exit_code == 2
    assert words in result.output


def test_slurm_is_followed_into_a_ledger_that_runs_once_its_accounting_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, begin = tmp_path / "sacct", round(time.time()) - 600
    row = f"7|COMPLETED|0:0|{begin}|{begin}|{begin + 540}|gres/gpu=8|ada|gpu|"
    header = "JobID|State|ExitCode|Submit|Start|End|AllocTRES|User|Partition|"
    program.write_text(
        "#!/bin/sh\n"
        'test -e "$0.called" || { : > "$0.called"; echo "Connection refused" >&2; exit 1; }\n'
        'while [ "$1" != --delimiter ]; do shift; done\n'
        f"printf '%s\\n' '{header}' '{row}' | sed \"s/|/$2/g\"\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    store = tmp_path / "ledger.db"
    with ledger_process(store) as service:
        result = run(
            "follow", "slurm", "--url", service.url, "--every", "1s", "--rounds", "2",
            "--cluster", "east", "--state", str(tmp_path / "state"),
        )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "sacct failed and is run again: status 1, Connection refused" in result.output
    [(outcome, status, seconds)] = rows(store)
    assert (outcome, status, seconds) == ("succeeded", "finished", 540 * 8)


def test_where_there_is_no_slurm_following_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = run("follow", "slurm", "--url", "http://127.0.0.1:1", "--rounds", "1")
    assert result.exit_code == 2
    assert "run where Slurm is" in result.output


@pytest.mark.server
def test_a_token_does_not_follow_a_redirect(tmp_path: Path) -> None:
    paths: list[str] = []

    class Redirecting(Answering):
        def answer(self, request: BaseHTTPRequestHandler, body: bytes) -> Answered:
            del body
            paths.append(request.path)
            return 307, b"", {"Location": "/elsewhere"}

    token, events = tmp_path / "token", tmp_path / "events.jsonl"
    token.write_text("w" * 20, encoding="ascii")
    documents = Story(now=time.time() - 9).start().events
    events.write_text("".join(json.dumps(d) + "\n" for d in documents), encoding="utf-8")
    with serving(Redirecting()) as server:
        url = f"http://{server.target}"
        result = run("import", "--url", url, "--token-file", token, events)
    assert result.exit_code == 2
    assert f"--url {url} answers 307" in result.output
    assert paths == ["/api/events"]
