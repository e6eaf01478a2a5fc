"""The answers of the service: scrapes as declared, jobs page by page, refusals with reasons."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from starlette.testclient import TestClient

from lockstep_catalogue import Endpoint, agent, ledger, metrics_of
from lockstep_cli.small_server import RateLimit
from lockstep_ledger.web.api import document
from lockstep_ledger.web.intake import Grant, Tokens

from ..service import application, complaints
from ..stories import Story, delivery

OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}
WRITER, READER = "w" * 20, "r" * 20


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def letters(client: TestClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/api/dead-letters").json()["dead_letters"]
    return found


@pytest.fixture(name="client")
def _client(tmp_path: Path) -> Iterator[TestClient]:
    with application(str(tmp_path / "ledger.db"), requests_per_second=1000) as (client, _, _):
        yield client


def story(job_id: str, **fields: Any) -> Story:
    now = time.time() - 100
    return Story(job_id=job_id, now=now).start(num_nodes=1, num_gpus=8, **fields).after(50).end()


def deliver(client: TestClient, *stories: Story) -> dict[str, Any]:
    answer = client.post("/api/events", content=delivery([e for s in stories for e in s.events]))
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def test_a_scrape_holds_what_is_declared_for_the_ledger_and_nothing_else(tmp_path: Path) -> None:
    with application(str(tmp_path / "ledger.db")) as (client, parts, _):
        declared = metrics_of(Endpoint.LEDGER)
        of_jobs = (ledger.COST, ledger.JOB_DEADLINE, ledger.JOB_TOKENS, ledger.JOB_ENDED)
        of_feeds = [metric for metric in declared if "_feed_" in metric.name]
        missing_yet = complaints(client.get("/metrics", headers=OPENMETRICS).text, declared)
        assert sorted(missing_yet) == sorted(
            f"{metric.name} is declared and not emitted" for metric in (*of_jobs, *of_feeds)
        )
        kind = {"state": "followed", "contact": 3.0}
        report = {
            "source": "kubernetes", "time": time.time(), "left_out": 0,
            "kinds": {"jobs.batch": kind},
        }  # fmt: skip
        frame = json.loads(delivery([])) | {"feed": report}
        assert client.post("/api/events", json=frame).status_code == 200
        promise: dict[str, Any] = {"deadline_time": time.time() + 3600, "declared_tokens": 10**9}
        running = Story(job_id="b", now=time.time()).start(num_nodes=1, **promise)
        paid = {"price_per_gpu_hour": 2.0, "currency": "EUR"}
        deliver(client, story("a", project='na"me\\', queue="q", **paid), running)
        parts.windows.refresh()
        assert complaints(client.get("/metrics", headers=OPENMETRICS).text, declared) == []
        scrape = client.get("/metrics", headers=OPENMETRICS).text
        [missing] = complaints(scrape, (*declared, agent.AGENT_INFO))
        assert "not emitted" in missing
        text = client.get("/metrics").text
        assert "# EOF" not in text
        assert f"# TYPE {ledger.JOBS_FINISHED.name} counter" in text


def test_every_combination_is_there_at_0_before_the_first_job(client: TestClient) -> None:
    lines = client.get("/metrics").text.splitlines()
    finished = [line for line in lines if line.startswith(ledger.JOBS_FINISHED.name + "{")]
    labels = ledger.JOBS_FINISHED.labels
    assert len(finished) == len(labels[-1].values) * len(labels[-2].values)
    assert all(line.endswith("} 0.0") for line in finished)
    windows = [line for line in lines if line.startswith(ledger.SLO_EVENTS.name + "{")]
    assert len(windows) == len(ledger.SLOS) * len(ledger.SLO_WINDOWS) * 2


def test_a_new_series_is_served_as_0_until_every_scraper_has_seen_it(tmp_path: Path) -> None:
    with application(str(tmp_path / "ledger.db"), hold_seconds=3600) as (client, parts, app):
        deliver(client, story("a", project="new"))
        text = client.get("/metrics").text
        assert [line for line in text.splitlines() if 'project="new"' in line]
        assert not [x for x in text.splitlines() if 'project="new"' in x and not x.endswith(" 0.0")]
        held = app._exposition.counted(parts.writer.counters.snapshot(), time.time() + 3601)
        assert held[ledger.JOBS_STARTED.name, ("east", "", "new", "")] == 1


def test_jobs_are_listed_page_by_page_and_by_filters(client: TestClient) -> None:
    deliver(client, *(story(f"job-{n}", project="even" if n % 2 == 0 else "odd") for n in range(9)))
    seen: list[str] = []
    after = ""
    while after is not None:
        page = client.get(f"/api/jobs?limit=2&project=even&after={after}").json()
        seen += [job["job_id"] for job in page["jobs"]]
        after = page["next"]
    assert seen == ["job-8", "job-6", "job-4", "job-2", "job-0"]
    assert client.get("/api/jobs?outcome=failed").json() == {"jobs": [], "next": None}


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("colour=red", "parameter 'colour' is unknown; use one of cluster"),
        ("outcome=good", "outcome='good' is unknown; use one of succeeded"),
        ("limit=0", "limit='0' must be a whole number from 1 to 500"),
        ("limit=501", "limit='501' must be"),
        ("after=x", "after='x' must be a whole number"),
        ("after=" + "9" * 40, "must be a whole number"),
        ("project=%00", "holds a NUL"),
    ],
)
def test_a_question_that_cannot_be_answered_names_parameter_value_and_remedy(
    client: TestClient, query: str, sentence: str
) -> None:
    answer = client.get(f"/api/jobs?{query}")
    assert answer.status_code == 400
    assert sentence in answer.json()["error"]


def test_a_job_shows_attempts_timeline_checkpoints_and_verdicts(client: TestClient) -> None:
    failing = Story(job_id="team/run:1", now=time.time() - 100).start(num_nodes=1)
    failing.add("checkpoint_durable", step=7).add("hang", missing=[3], limit_seconds=60.0)
    failing.after(9).end("failed", failure_class="infra", cause="xid", reason="Xid 79")
    deliver(client, failing)
    job = client.get("/api/jobs/team%2Frun%3A1").json()
    assert [entry["outcome"] for entry in job["attempts_list"]] == ["failed"]
    assert [entry["step"] for entry in job["checkpoints_list"]] == [7]
    assert [entry["kind"] for entry in job["verdicts"]] == ["hang"]
    assert [entry["kind"] for entry in job["timeline"]] == [e["kind"] for e in failing.events]
    assert client.get("/api/jobs/none").status_code == 404


def test_a_job_id_in_two_clusters_needs_the_cluster(client: TestClient) -> None:
    deliver(client, story("a"), Story(job_id="a", cluster="west", now=time.time() - 50).start())
    assert "clusters east, west; add ?cluster=NAME" in client.get("/api/jobs/a").json()["error"]
    assert client.get("/api/jobs/a?cluster=west").json()["status"] == "running"


def test_the_pages_show_jobs_and_run_no_text_of_theirs(client: TestClient) -> None:
    deliver(client, story("a", project="<script>alert(1)</script>", name="x' onload='"))
    for path in ("/", "/jobs/a", "/?project=<script>"):
        page = client.get(path)
        assert page.status_code == 200
        assert "<script" not in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "succeeded" in client.get("/jobs/a").text


def future(seconds: float) -> Story:
    return Story(job_id="f", now=time.time() + seconds).start()


BAD_EVENTS: list[tuple[dict[str, Any], str, str]] = [
    ({"version": 9}, "version", "version 9 is unknown here; send 1"),
    ({"job_id": None}, "type", "job_id None must be 1 to 200 printable characters"),
    ({"fields": {}}, "missing", "field 'outcome' is missing in job_finished"),
    ({"fields": {"outcome": "won"}}, "value", "job_finished.outcome 'won' must be one of"),
    ({"time": time.time() + 4000}, "future", "in the future; set the clock of the node"),
    ({"time": "noon"}, "type", "time 'noon' must be seconds since 1970"),
    ({"node": "a\x00b"}, "type", "must be at most 200 printable characters"),
    ({"fields": {"outcome": "failed", "log": "x" * 70_000}}, "value", "at most 4096 characters"),
]


@pytest.mark.parametrize(("change", "refusal", "sentence"), BAD_EVENTS)
def test_a_bad_event_is_answered_and_kept_and_disturbs_nothing_else(
    client: TestClient, change: dict[str, Any], refusal: str, sentence: str
) -> None:
    good = story("good")
    bad = {**good.events[-1], "id": "bad", "job_id": "other", **change}
    answer = client.post("/api/events", content=delivery([*good.events[:1], bad, *good.events[1:]]))
    result = answer.json()
    assert (answer.status_code, result["stored"]) == (200, len(good.events))
    [refused] = result["rejected"]
    assert (refused["id"], refused["refusal"]) == ("bad", refusal)
    assert sentence in refused["reason"]
    [letter] = letters(client)
    assert (letter["refusal"], letter["reason"]) == (refusal, refused["reason"])
    assert client.get("/api/jobs").json()["jobs"][0]["outcome"] == "succeeded"
    # By itself, and sent again: refused by the status, and kept once.
    by_itself = client.post("/api/events", content=delivery([bad]))
    assert (by_itself.status_code, len(letters(client))) == (422, 1)


@pytest.mark.parametrize(
    ("body", "status", "refusal", "sentence"),
    [
        (b"{", 400, "json", "it is not JSON"),
        (b"[" * 100_000, 400, "json", "nested too deeply"),
        (b'{"version": 1, "events": [NaN]}', 400, "json", "NaN is not a JSON number"),
        (b"[]", 400, "type", "must be a JSON object"),
        (b'{"version": 2, "events": []}', 400, "version", "version 2 of a delivery is unknown"),
        (b'{"version": 1}', 400, "missing", "events must be a list"),
        (b'{"version": 1, "node": "\\u0000", "events": []}', 400, "type", "node '\\x00' must be"),
        (b'{"version":1,"events":[' + b"0," * 1000 + b"0]}", 413, "size", "1001 events are too"),
        (b" " * 200_001, 413, "size", "the body is longer than 200000 bytes"),
    ],
)
def test_a_bad_request_is_answered_and_kept(
    tmp_path: Path, body: bytes, status: int, refusal: str, sentence: str
) -> None:
    with application(str(tmp_path / "l.db"), max_body_bytes=200_000) as (client, _, _):
        answer = client.post("/api/events", content=body)
        assert (answer.status_code, answer.json()["refusal"]) == (status, refusal)
        assert sentence in answer.json()["error"]
        [letter] = letters(client)
        assert (letter["refusal"], letter["reason"]) == (refusal, answer.json()["error"])


def test_writers_write_readers_read_and_probes_need_no_token(tmp_path: Path) -> None:
    writers, readers = Tokens({WRITER: Grant()}), Tokens({READER: Grant()})
    with application(str(tmp_path / "l.db"), writers, readers) as (client, _, _):
        for token in ("", READER, "x"):
            answer = client.post("/api/events", content=b"secret", headers=bearer(token))
            assert (answer.status_code, answer.json()["refusal"]) == (401, "token")
        accepted = client.post("/api/events", content=delivery([]), headers=bearer(WRITER))
        assert accepted.status_code == 200
        for path in ("/metrics", "/api/jobs", "/api/dead-letters", "/", "/jobs/a"):
            assert client.get(path).status_code == 401
            assert client.get(path, headers=bearer(WRITER)).status_code == 401
        assert client.get("/", auth=("anybody", READER)).status_code == 200
        refused = client.get("/api/dead-letters", headers=bearer(READER)).json()["dead_letters"]
        assert {letter["refusal"] for letter in refused} == {"token"}
        assert "secret" not in str(refused)
        assert client.get("/healthz").status_code == 200


def test_a_client_that_asks_too_often_is_told_when_to_come_again() -> None:
    now = 0.0
    limit = RateLimit(2.0, clock=lambda: now)
    assert [limit.wait_seconds("a") for _ in range(21)] == [0.0] * 20 + [0.5]
    assert limit.wait_seconds("b") == 0
    now = 0.5
    assert [limit.wait_seconds("a"), limit.wait_seconds("a")] == [0.0, 0.5]


def test_the_answer_to_too_many_requests_says_so(tmp_path: Path) -> None:
    with application(str(tmp_path / "l.db"), requests_per_second=0.1) as (client, _, _):
        assert client.get("/api/jobs").status_code == 200
        answer = client.get("/api/jobs")
        assert answer.status_code == 429
        assert client.get("/healthz").status_code == 200
        assert int(answer.headers["retry-after"]) >= 1


def test_the_answers_are_as_the_openapi_document_says(tmp_path: Path) -> None:
    with application(str(tmp_path / "l.db")) as (client, _, app):
        described = client.get("/api/openapi.json").json()
        assert described == document()
        paths = {p.replace(":path", "") for p in app.paths if p.startswith("/api/")}
        assert set(described["paths"]) == paths
        deliver(client, story("a"))
        client.post("/api/events", content=b"{")
        for path, url in (
            ("/api/jobs", "/api/jobs"),
            ("/api/jobs/{job_id}", "/api/jobs/a"),
            ("/api/dead-letters", "/api/dead-letters"),
            ("/api/costs", "/api/costs?by=user,day"),
            ("/api/statement", "/api/statement"),
        ):
            described_answer = described["paths"][path]["get"]["responses"]["200"]
            schema = described_answer["content"]["application/json"]["schema"]
            schema = {**schema, "components": described["components"]}
            jsonschema.validate(client.get(url).json(), schema)
        for path in ("/api/costs", "/api/statement"):
            kind = client.get(path, params={"format": "csv"}).headers["Content-Type"]
            described_answer = described["paths"][path]["get"]["responses"]["200"]
            assert kind.partition(";")[0] in described_answer["content"]
