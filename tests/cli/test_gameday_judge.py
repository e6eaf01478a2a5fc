"""The rows of the game day are read as declared, and its judge passes nothing but the expected."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lockstep_cli.gameday import command, results
from lockstep_cli.gameday.actions import missing
from lockstep_cli.gameday.command import gameday
from lockstep_cli.gameday.judge import evaluate, judge
from lockstep_cli.gameday.results import Document, Result
from lockstep_cli.gameday.rows import Row, RowError, draw_pairs, read_rows
from lockstep_cli.gameday.scene import Observed, Truth
from lockstep_cli.gameday.stage import Notification, Stage

FAILED = {"failure_class": "user", "cause": "host_oom", "cause_ranks": [1]}
ROW = """
- row: memory
  failure: F6
  says: x
  job: {faults: ["oom:rank=$rank,step=5"]}
  expect:
    notices:
      - {alert: TrainOutOfMemory, to: tickets, severity: warning, within: 60s, labels: {rank: "1"}}
    ledger: {outcome: succeeded, failure_class: user, culprit: rank 1, lost: {rework: ranks * 10}}
    report: nobody
    resumed: true
    steps_lost: 20
"""


@pytest.fixture(name="row")
def _row(tmp_path: Path) -> Row:
    (tmp_path / "rows.yaml").write_text(ROW)
    [row] = read_rows(1, 4, "ddp", tmp_path)
    return row


def ticket(at: float = 130.0, **labels: str) -> Notification:
    alert = {
        "status": "firing",
        "labels": {"alertname": "TrainOutOfMemory", "severity": "warning", "rank": "1", **labels},
        "annotations": {"summary": "out of memory"},
    }
    return Notification(wall_seconds=at, receiver="tickets", status="firing", alerts=(alert,))


def observed(*notifications: Notification, **changes: Any) -> Observed:
    truth = {"began": 100.0, "ranks": 4, "attempts": 2, "steps_lost": 10, "exit_status": 0}
    record = {
        "outcome": "succeeded",
        "cause": "success",
        "attempts": 2,
        "preemptions": 0,
        "attempts_list": [FAILED | changes.pop("attempt", {})],
        "goodput": {"rework": changes.pop("rework", 41.0)},
    }
    return Observed(
        truth=Truth(**truth | changes),
        notifications=list(notifications or (ticket(),)),
        record=record,
        headline="nobody was slow",
    )


def test_what_is_expected_passes(row: Row) -> None:
    assert all(finding.holds for finding in judge(row, observed()))


@pytest.mark.parametrize(
    ("make", "column"),
    [
        (lambda: observed(ticket(at=161.0)), "alerts"),
        (lambda: observed(ticket(at=99.0)), "alerts"),
        (lambda: observed(ticket(rank="2")), "alerts"),
        (lambda: observed(ticket(severity="critical")), "alerts"),
        (lambda: observed(ticket(), ticket(at=150.0)), "notified"),
        (lambda: observed(ticket(), ticket(alertname="TrainJobFailing")), "nothing else"),
        (lambda: observed(attempt={"cause_ranks": [2]}), "ledger"),
        (lambda: observed(rework=44.0), "lost"),
        (lambda: observed(exit_status=1), "resumed"),
        (lambda: observed(steps_lost=21), "steps lost"),
    ],
)
def test_a_deviation_fails_its_check(row: Row, make: Callable[[], Observed], column: str) -> None:
    failed = {finding.column for finding in judge(row, make()) if not finding.holds}
    assert column in failed


def test_a_formula_is_arithmetic_over_truths_alone() -> None:
    assert evaluate("(ranks - 1) * 0.5", Truth(ranks=3)) == 1.0
    for text in ("__import__('os')", "secret", "ranks ** 9"):
        with pytest.raises(ValueError, match="not arithmetic"):
            evaluate(text, Truth())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- {row: 'a b', failure: F1, says: x, expect: {}}", "letters"),
        ("- {row: a, failure: F1, says: x, expect: {notified: 1}}", "notified"),
        ("- {row: a, failure: F1, says: $nothing, expect: {}}", "nothing"),
        ("- {row: a, failure: F1, says: x, expect: {}, actions: [{at: never, gpu: 1}]}", "never"),
        ("- {row: a, failure: F1, says: x, expect: {}, actions: [{explode: 1}]}", "explode"),
        ("- {row: a, failure: F1, says: x, expect: {watch: soon}}", "soon"),
    ],
)
def test_a_row_that_is_not_as_declared_is_refused_with_its_name(
    tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "rows.yaml").write_text(text)
    with pytest.raises(RowError, match=words):
        [missing(row) for row in read_rows(1, 4, "ddp", tmp_path)]


def test_the_same_seed_draws_the_same_rows_and_another_seed_others() -> None:
    assert read_rows(1, 4, "ddp") == read_rows(1, 4, "ddp") != read_rows(2, 4, "ddp")


def test_what_is_not_run_is_never_passed_and_all_files_show_it(row: Row, tmp_path: Path) -> None:
    document = Document(
        seed=1,
        ranks=4,
        strategy="ddp",
        seconds=60.0,
        results=(
            Result.not_run(row, "no <compiler>"),
            Result.of(row, judge(row, observed(ticket(rank="2"))), 9.0),
        ),
    )
    assert [result.word for result in document.results] == ["not run here", "FAILED"]
    files = {kind: tmp_path / f"results{kind}" for kind in (".html", ".xml", ".md")}
    results.write(document, files)
    texts = {kind: path.read_text() for kind, path in files.items()}
    assert all("not run here" in text and "FAILED" in text for text in texts.values()) or (
        "<skipped" in texts[".xml"] and "<failure" in texts[".xml"]
    )
    assert "no &lt;compiler&gt;" in texts[".html"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--only", "F99,f1"], "F99: unknown"),
        (["--only", ","], "no row is named"),
        (["--only", ""], "no row is named"),
        (["--only", "F1", "--junit", "/nowhere/a.xml"], "/nowhere/a.xml: its folder"),
        (["--only", "F1", "--ranks", "16", "--parallel", "1"], "GB are needed"),
        (["--only", "F1"], "no game day wrote"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], says: str
) -> None:
    monkeypatch.setattr(command, "_free_gigabytes", lambda: 4.0)
    (tmp_path / "mine").write_text("")
    done = CliRunner().invoke(gameday, [*words, "--keep", str(tmp_path)])
    assert (done.exit_code, says in done.output) == (2, True), done.output
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_help_names_rows_that_exist() -> None:
    [example] = re.findall(r"such as\s+(\S+)\.", CliRunner().invoke(gameday, ["--help"]).output)
    assert CliRunner().invoke(gameday, ["--list", "--only", example]).exit_code == 0


def test_a_row_that_breaks_fails_and_the_next_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep, junit = tmp_path / "out", tmp_path / "a.xml"
    page = {"receiver": "pager", "status": "firing", "time": "2026-11-28T00:00:00+00:00"}
    alerts = [{"status": "firing", "labels": {"alertname": "Fire", "cluster": "elsewhere"}}]

    def play(_stage: Stage, row: Row) -> Observed:
        (keep / "stack").mkdir(exist_ok=True)
        (keep / "stack" / "pages.jsonl").write_text(json.dumps(page | {"alerts": alerts}) + "\n")
        raise KeyError(row.row)

    monkeypatch.setattr(command, "_play", play)
    monkeypatch.setattr(Stage, "_start", lambda _: None)
    words = ["--only", "F1", "--keep", str(keep), "--junit", str(junit)]
    done = CliRunner().invoke(gameday, words, standalone_mode=False)
    assert (done.return_value, junit.read_text().count("KeyError: ")) == (1, 2)
    assert "pager also received Fire of 'elsewhere'" in done.output


def test_a_pair_is_of_one_cluster_and_each_row_is_judged_by_its_own_alerts(tmp_path: Path) -> None:
    rows = [row for row in read_rows(1, 4, "ddp") if row.job]
    pairs = draw_pairs(rows, 12, 7)
    assert pairs == draw_pairs(rows, 12, 7)
    for first, second in pairs:
        assert first.cluster == second.cluster
        assert len({first.row, second.row, first.cluster}) == 3
        nodes = [each.labels.get("node", "") for each in first.expect.notices]
        assert all(node.startswith("a-node-") for node in nodes if node)
    stage = Stage(tmp_path, [])
    (tmp_path / "stack").mkdir()
    groups = [["own"], ["own", "other"], ["own", "other"]]
    (tmp_path / "stack" / "pages.jsonl").write_text(
        "".join(
            json.dumps(
                {
                    "time": f"2026-11-28T00:00:0{number}+00:00",
                    "receiver": "tickets",
                    "status": "firing",
                    "alerts": [
                        {"status": "firing", "labels": {"cluster": "c", "job_id": name}}
                        for name in names
                    ],
                }
            )
            + "\n"
            for number, names in enumerate(groups)
        )
    )
    # The second came for the other's alert; the third for none, which is one too many.
    received = stage.notifications("c", lambda labels: labels["job_id"] == "own")
    assert [len(each.alerts) for each in received] == [1, 1]
    shutil.rmtree(stage.memory)
