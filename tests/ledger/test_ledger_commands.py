"""What people type: tables, JSON and Parquet of a store, the week's review, imports."""

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from lockstep_ledger import program
from lockstep_ledger.command import ledger
from lockstep_ledger.commands.review import parse_week

from .stories import Story

WEEK = "2024-W10"
MONDAY = datetime(2024, 3, 4, tzinfo=UTC).timestamp()


def call(*words: str) -> Result:
    return CliRunner().invoke(ledger, list(words))


def printed(*words: str) -> str:
    result = call(*words)
    assert result.exit_code == 0, (result.output, result.stderr)
    return result.stdout


def stories() -> list[Story]:
    """Two weeks of jobs: four fail, two of them on one node."""
    made_up = []
    for number in range(12):
        begin = MONDAY + 86_400 * (-3 if number > 9 else number % 6)
        story = Story(job_id=f"job-{number}", now=begin)
        described: dict[str, Any] = {"num_gpus": 8, "project": "vision", "price_per_gpu_hour": 2.0}
        described["currency"] = "USD" if number == 9 else "EUR"
        story.start("n1", num_nodes=1, **described).after(1800)
        story.add("goodput", "n1", rank_seconds={"productive": 8 * 1200.0}, num_ranks=8, num_gpus=8)
        fields: dict[str, Any] = {}
        if number in {1, 2, 3}:
            node = "n7" if number < 3 else None
            fields = {"failure_class": "infra", "cause": "xid", "cause_node": node}
        if number == 4:
            fields = {"failure_class": "user", "cause": "exception"}
        story.after(1800).end("failed" if fields else "succeeded", "n1", **fields)
        made_up.append(story)
    return made_up


@pytest.fixture(name="store", scope="module")
def _store(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("commands")
    path = folder / "events.jsonl"
    lines = [json.dumps(event) for story in stories() for event in story.events]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    store = str(folder / "ledger.db")
    assert "60" in printed("import", str(path), "--store", store)
    assert "stored │ 0" in " ".join(printed("import", str(path), "--store", store).split())
    return store


def test_jobs_are_listed_as_a_table_and_as_json(store: str) -> None:
    table = printed("jobs", "--store", store, "--outcome", "failed")
    assert "4 jobs" in table
    assert "n7" in table
    page = json.loads(printed("jobs", "--store", store, "--limit", "5", "--json"))
    assert [job["job_id"] for job in page["jobs"]] == [f"job-{n}" for n in range(11, 6, -1)]
    assert page["next"] is not None


def test_a_job_is_shown_with_attempts_states_and_timeline(store: str) -> None:
    table = printed("job", "job-1", "--store", store)
    assert table.startswith("job-1 on east: failed infra xid")
    assert "productive │      2.67 │ 33.3%" in table
    document = json.loads(printed("job", "job-1", "--store", store, "--json"))
    assert document["costs"] == {"EUR": 16.0}
    assert len(document["timeline"]) == 5


def test_the_review_of_a_week_names_failures_nodes_trends_and_cost(store: str) -> None:
    week = json.loads(printed("review", "--store", store, "--week", WEEK, "--json"))
    assert week["failures"][0] == {
        "failure_class": "infra", "cause": "xid", "jobs": 3, "gpu_hours": 24.0,
    }  # fmt: skip
    assert week["nodes"][0] == {"node": "n7", "failures": 2, "causes": {"xid": 2}}
    assert week["projects"] == [
        {"project": "vision", "jobs": 10, "gpu_hours": 80.0, "costs": {"EUR": 144.0, "USD": 16.0}}
    ]
    before, now = week["trends"][-2:]
    assert (before["week"], before["jobs"], before["succeeded"]) == ("2024-W09", 2, 2)
    assert (now["week"], now["jobs"], now["succeeded"]) == (WEEK, 9, 6)
    assert now["productive_gpu_hours"] / now["gpu_hours"] == pytest.approx(1 / 3)
    table = printed("review", "--store", store, "--week", WEEK)
    assert "144.00 EUR, 16.00 USD" in table
    assert "66.7%" in table
    assert "33.3%" in table


def test_a_week_keeps_what_became_of_a_job_that_ran_again_later(tmp_path: Path) -> None:
    story = Story(job_id="again", now=MONDAY).start(num_nodes=1, num_gpus=8).after(1800)
    story.end("failed", failure_class="infra", cause="xid").after(7 * 86_400)
    story.start(attempt=1, num_nodes=1, num_gpus=8).after(3600).end(attempt=1)
    path, store = tmp_path / "events.jsonl", str(tmp_path / "ledger.db")
    path.write_text("".join(json.dumps(event) + "\n" for event in story.events), encoding="utf-8")
    printed("import", str(path), "--store", store)
    for name, *expected in ((WEEK, "failed", 4.0, 0), ("2024-W11", "succeeded", 8.0, 1)):
        week = json.loads(printed("review", "--store", store, "--week", name, "--json"))
        [row] = week["outcomes"]
        requeues = week["trends"][-1]["requeues"]
        assert [row["outcome"], row["gpu_hours"], requeues] == expected


def test_exports_hold_every_job_and_event(store: str, tmp_path: Path) -> None:
    path = tmp_path / "jobs.parquet"
    printed("export", "jobs", str(path), "--store", store)
    rows = pq.read_table(path).to_pylist()
    assert len(rows) == 12
    seconds = [value for name, value in rows[0].items() if name.endswith("_gpu_seconds")]
    assert sum(seconds) == rows[0]["gpu_seconds"] == 8 * 3600
    printed("export", "events", str(tmp_path / "events.parquet"), "--store", store)
    assert pq.read_table(tmp_path / "events.parquet").num_rows == 60


def test_what_is_refused_at_an_import_is_printed_and_kept(store: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    late = Story(job_id="late", now=time.time() + 9000).start()
    path.write_text(json.dumps(late.events[0]) + "\n\n", encoding="utf-8")
    result = call("import", str(path), "--store", store)
    assert result.exit_code == 0
    assert "in the future; set the clock of the node" in result.stderr
    assert "future" in printed("dead-letters", "--store", store)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("jobs", "--store", "/nowhere/x.db"), "is not a file; start lockstep ledger serve first"),
        (("jobs", "--store", "mysql://x/y"), "must be a path of SQLite or postgresql"),
        (("job", "none", "--store", "STORE"), "job 'none' is not in the store"),
        (("review", "--store", "STORE", "--week", "47"), "'47' is not a week; write a year and a"),
        (("review", "--store", "STORE", "--week", "2026-W60"), "'2026-W60' is not a week"),
        (
            ("export", "jobs", "/nowhere/x.parquet", "--store", "STORE"),
            "folder /nowhere does not exist",
        ),
        (("import", "README", "--store", "STORE"), "README line 1: it is not JSON: "),
        (("import", "README", "--url", "http://127.0.0.1:1"), "README line 1: it is not JSON"),
        (("import", "NAN", "--store", "STORE"), "NAN line 1: it is not JSON: NaN is not"),
        (("serve", "--listen", "0.0.0.0:0"), "is open to the network: give --writer-tokens"),
        (("serve", "--listen", "x"), "'x' is not HOST:PORT"),
        (("serve", "--tls-cert", "README"), "--tls-cert needs --tls-key too; give both"),
        (("serve", "--tls-cert", "README", "--tls-key", "README"), "are not a certificate and its"),
        (("serve", "--writer-tokens", "README"), "must hold one token a line"),
        (("serve", "--queue", "a\nb"), "must be 1 to 200 printable characters"),
        (("serve", "--node-wait", "10"), "'10' is not a duration"),
    ],
)
def test_bad_input_is_refused_in_a_sentence_and_leaves_nothing(
    store: str, tmp_path: Path, words: tuple[str, ...], sentence: str
) -> None:
    readme, nan = tmp_path / "README", tmp_path / "NAN"
    readme.write_text("no token\n", encoding="utf-8")
    nan.write_text('{"id": "a", "time": NaN}\n', encoding="utf-8")
    places = {"STORE": store, "README": str(readme), "NAN": str(nan)}
    given = [places.get(word, word) for word in words]
    if words[0] == "serve":
        given += ["--store", str(tmp_path / "new.db")]
    result = call(*given)
    assert result.exit_code == 2
    text = " ".join(result.stderr.replace("│", " ").split())
    assert sentence in text.replace(str(tmp_path) + "/", "")
    assert {*tmp_path.iterdir()} == {readme, nan}


def test_every_subcommand_has_a_help(store: str) -> None:
    del store
    for name in ledger.list_commands(click.Context(ledger)):
        assert "Usage" in printed(name, "--help")
    assert parse_week(WEEK).isoformat() == "2024-03-04"


def test_every_wait_of_serve_reaches_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[program.Settings] = []
    monkeypatch.setattr(program, "run", found.append)
    waits = ("--node-wait", "5m", "--requeue-wait", "2h", "--silent-wait", "3h")
    assert call("serve", *waits).exit_code == 0
    [settings] = found
    timeouts = settings.timeouts
    assert (timeouts.node_seconds, timeouts.requeue_seconds) == (300.0, 7200.0)
    assert timeouts.silent_seconds == 10_800.0
