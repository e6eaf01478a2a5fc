"""Costs and statements as people type and programs ask for them."""

import csv
import io
import json
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from click.testing import CliRunner, Result
from servers import captured
from starlette.testclient import TestClient

from lockstep_ledger.command import ledger
from lockstep_ledger.web.intake import Grant, Tokens
from lockstep_outcomes.prices.price import Pricing
from lockstep_outcomes.prices.rate_card import read_rate_card

from ..service import application
from ..stories import Story

BERLIN = ZoneInfo("Europe/Berlin")
RATES = """
rates:
  - {from: 2024-01-01, price_per_gpu_hour: 2, currency: EUR}
  - {from: 2024-01-01, gpu_model: "*A100*", price_per_gpu_hour: 1, currency: USD}
budgets:
  - {from: 2024-01-01, project: vision, amount: 100, currency: EUR}
  - {from: 2024-01-01, amount: 500, currency: EUR}
capacity:
  - {from: 2024-01-01, cluster: east, installed: 16, drained: 1}
"""


def at(text: str) -> float:
    return datetime.fromisoformat(f"2024-{text}").replace(tzinfo=BERLIN).timestamp()


def job(job_id: str, project: str, begin: str, end: str, **fields: Any) -> Story:
    story = Story(job_id=job_id, now=at(begin))
    story.add("job_started", num_gpus=8, num_nodes=1, project=project, user="ada", **fields)
    return story.after(at(end) - at(begin)).add("job_finished", outcome="succeeded")


# 240 GPU hours for 480 EUR, of which 23 x 8 = 184 on the day of 23 hours; 16 for 32 EUR; 8 for
# 8 USD. A name that a spreadsheet would compute.
STORIES = (
    job("march", "vision", "03-30 17:00", "04-01 00:00", gpu_model="NVIDIA H200"),
    job("sum", "=1+1", "03-05 10:00", "03-05 12:00", gpu_model="NVIDIA H200"),
    job("usd", "speech", "03-06 10:00", "03-06 11:00", gpu_model="NVIDIA A100"),
)


def bring(store: Path, *stories: Story) -> None:
    path = store.with_suffix(".jsonl")
    events = [json.dumps(event) for story in stories for event in story.events]
    path.write_text("\n".join(events) + "\n", encoding="utf-8")
    result = CliRunner().invoke(ledger, ["import", str(path), "--store", str(store)])
    assert result.exit_code == 0, result.output
    assert "refused │ 0 │" in " ".join(result.stdout.split())


@pytest.fixture(name="store")
def _store(tmp_path: Path) -> Path:
    (tmp_path / "rates.yaml").write_text(RATES, encoding="utf-8")
    bring(tmp_path / "ledger.db", *STORIES)
    return tmp_path / "ledger.db"


def run(store: Path, *words: str) -> Result:
    rates = store.with_name("rates.yaml")
    common = ["--store", str(store), "--rates", str(rates), "--timezone", "Europe/Berlin"]
    # What is given later holds.
    return CliRunner().invoke(ledger, [words[0], *common, *words[1:]])


def printed(store: Path, *words: str) -> str:
    result = run(store, *words)
    assert result.exit_code == 0, (result.output, result.stderr)
    return result.stdout


def test_costs_are_a_table_csv_and_json(store: Path) -> None:
    table = printed(store, "costs", "--month", "2024-03", "--by", "project")
    words = " ".join(table.split())
    assert "2024-03-01 to 2024-03-31, Europe/Berlin" in words
    assert "vision │ 240.00 │ 0.00 │ EUR │ 480.00" in words
    assert "total │ 256.00 │ 0.00 │ EUR │ 512.00" in words
    assert "total │ 8.00 │ 0.00 │ USD │ 8.00" in words
    rows = list(csv.reader(io.StringIO(printed(store, "costs", "--month", "2024-03", "--csv"))))
    assert rows == [
        ["project", "gpu_hours", "wasted_gpu_hours", "currency", "amount", "wasted_amount"],
        ["vision", "240.0", "0.0", "EUR", "480.0", "0.0"],
        ["'=1+1", "16.0", "0.0", "EUR", "32.0", "0.0"],
        ["speech", "8.0", "0.0", "USD", "8.0", "0.0"],
    ]
    of_a_day = printed(
        store, "costs", "--from", "2024-03-31", "--to", "2024-03-31", "--by", "day,user",
        "--sort", "day", "--project", "vision", "--json",
    )  # fmt: skip
    [row] = json.loads(of_a_day)["rows"]
    assert (row["day"], row["user"], row["gpu_hours"], row["amount"]) == (
        "2024-03-31", "ada", 184.0, 368.0,
    )  # fmt: skip
    # In UTC the month is an hour longer at its end, and two at its begin.
    in_utc = printed(store, "costs", "--month", "2024-04", "--csv", "--timezone", "UTC")
    assert in_utc.splitlines()[1:] == []


def test_a_statement_has_lines_totals_budgets_and_capacity(store: Path) -> None:
    words = " ".join(printed(store, "statement", "--month", "2024-03").split())
    assert "2024-03, Europe/Berlin" in words
    assert "vision │ EUR │ 100.00 │ 480.00 │ -380.00" in words
    # 743 hours x 16, 743 drained, 264 allocated.
    assert "11,888.00 │ 0.00 │ 743.00 │ 264.00 │ 10,881.00" in words
    text = printed(store, "statement", "--month", "2024-03", "--csv")
    [usd] = [row for row in csv.DictReader(io.StringIO(text)) if row["job_id"] == "usd"]
    assert (usd["gpu_hours"], usd["price"], usd["currency"], usd["amount"]) == (
        "8.0", "1.0", "USD", "8.0",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("costs", "--month", "3/2024"), "'3/2024' is not a month; write year and month"),
        (("costs", "--sort", "size"), "sort='size' must be one of project"),
        (("costs", "--timezone", "Mars"), "'Mars' is not a time zone of this machine"),
        (("statement", "--month", "2024"), "'2024' is not a month"),
    ],
)
def test_what_cannot_be_answered_is_refused_by_one_sentence(
    store: Path, words: tuple[str, ...], sentence: str
) -> None:
    result = run(store, *words)
    assert result.exit_code == 2
    assert sentence in " ".join(result.output.split())


READERS = Tokens(
    {
        "everything-000000001": Grant(scope="reader"),
        "vision-0000000000002": Grant(scope="reader", projects=frozenset({"vision"})),
    }
)


@pytest.fixture(name="client")
def _client(store: Path) -> Iterator[TestClient]:
    pricing = Pricing(read_rate_card(store.with_name("rates.yaml")), BERLIN)
    with application(str(store), readers=READERS, pricing=pricing) as (client, _, _):
        client.headers["Authorization"] = "Bearer everything-000000001"
        yield client


def test_programs_get_costs_and_statements(client: TestClient) -> None:
    answer = client.get("/api/costs?month=2024-03&by=project,gpu_model&sort=gpu_hours").json()
    assert answer["timezone"] == "Europe/Berlin"
    assert [(r["project"], r["currency"], r["amount"]) for r in answer["rows"]] == [
        ("vision", "EUR", 480.0), ("=1+1", "EUR", 32.0), ("speech", "USD", 8.0),
    ]  # fmt: skip
    assert [row["amount"] for row in answer["totals"]] == [512.0, 8.0]
    table = client.get("/api/costs?month=2024-03&user=nobody&format=csv")
    assert table.headers["content-type"].startswith("text/csv")
    assert len(table.text.splitlines()) == 1
    statement = client.get("/api/statement?month=2024-03").json()
    assert [line["job_id"] for line in statement["lines"]] == ["march", "sum", "usd"]
    assert statement["budgets"][0]["left"] == -380.0
    page = client.get("/costs?month=2024-03").text
    assert "480.00" in page
    assert "=1+1" in page
    assert "Capacity in 2024-03" in page


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("by=size", "by='size' must be some of cluster"),
        ("by=day,day", "must be some of"),
        ("sort=size", "sort='size' must be one of project"),
        ("month=13", "'13' is not a month"),
        ("moth=2024-03", "parameter 'moth' is unknown"),
        ("format=xml", "format='xml' must be csv or json"),
        ("from=2024-03-01&to=2026-03-01", "must be 1 to 400 days"),
    ],
)
def test_a_wrong_question_gets_one_sentence(client: TestClient, query: str, words: str) -> None:
    answer = client.get(f"/api/costs?{query}")
    assert answer.status_code == 400
    assert words in answer.json()["error"]


def test_a_reader_of_one_project_sees_the_money_of_no_other(client: TestClient) -> None:
    client.headers["Authorization"] = "Bearer vision-0000000000002"
    costs = client.get("/api/costs?month=2024-03&by=job_id").json()
    assert [row["job_id"] for row in costs["rows"]] == ["march"]
    assert [row["amount"] for row in costs["totals"]] == [480.0]
    statement = client.get("/api/statement?month=2024-03").json()
    assert [line["job_id"] for line in statement["lines"]] == ["march"]
    assert [budget["project"] for budget in statement["budgets"]] == ["vision"]
    assert statement["capacity"] == []
    for text in (client.get("/costs?month=2024-03").text, json.dumps(statement)):
        assert "speech" not in text
        assert "1+1" not in text


def test_a_reader_of_a_cluster_sees_no_budget_that_others_spend_too(store: Path) -> None:
    readers = Tokens(
        {"east-00000000000000004": Grant(scope="reader", clusters=frozenset({"east"}))}
    )
    pricing = Pricing(read_rate_card(store.with_name("rates.yaml")), BERLIN)
    with application(str(store), readers=readers, pricing=pricing) as (client, _, _):
        client.headers["Authorization"] = "Bearer east-00000000000000004"
        statement = client.get("/api/statement?month=2024-03").json()
        assert len(statement["lines"]) == 3
        assert (statement["budgets"], statement["capacity"]) == ([], [])


@pytest.mark.server
def test_a_ledger_does_not_start_with_a_card_that_it_cannot_read(store: Path) -> None:
    wrong = "rates:\n  - {from: 2024-01-01, price_per_gpu_hour: 1, currency: euro}\n"
    store.with_name("wrong.yaml").write_text(wrong, encoding="utf-8")
    command = [sys.executable, "-m", "lockstep_cli.main", "ledger", "serve", "--store", str(store)]
    ended = captured(
        [*command, "--listen", "127.0.0.1:0", "--rates", "wrong.yaml"], cwd=store.parent, timeout=60
    )
    assert ended.returncode == 2
    assert "wrong.yaml:2: rates[0].currency 'euro'" in " ".join(ended.stderr.split())
