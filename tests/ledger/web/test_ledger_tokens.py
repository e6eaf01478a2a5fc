"""What a token may do: files of tokens, scopes, clusters and projects."""

import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

from lockstep_ledger.commands.serve import serve
from lockstep_ledger.web.intake import WRITER_SCOPES, Grant, Tokens, read_tokens
from lockstep_records.file_access.token_files import read_token_lines

from ..service import application
from ..stories import Story, delivery

TOKEN, OTHER = "t" * 20, "o" * 20


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_an_event_outside_the_grant_is_refused_by_itself_and_kept(tmp_path: Path) -> None:
    writers = Tokens({TOKEN: Grant(scope="launcher", clusters=frozenset({"east"}))})
    with application(str(tmp_path / "l.db"), writers) as (client, _, app):
        now = time.time() - 50
        events = Story(job_id="a", now=now).start().events
        events += Story(job_id="b", cluster="west", now=now).start().events[:1]
        events += Story(job_id="a", now=now).add("node_event", sign="node_lost").events
        answer = client.post("/api/events", content=delivery(events, "n1"), headers=bearer(TOKEN))
        assert (answer.status_code, answer.json()["stored"]) == (200, 2)
        reasons = {r["refusal"]: r["reason"] for r in answer.json()["rejected"]}
        assert reasons.keys() == {"scope"}
        assert app.intake.refusals["scope"] == 2
        letters = client.get("/api/dead-letters").json()["dead_letters"]
        assert {(letter["refusal"], letter["job_id"]) for letter in letters} == {
            ("scope", "a"), ("scope", "b"),
        }  # fmt: skip


@pytest.fixture(name="readers", scope="module")
def _readers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    tokens = {
        TOKEN: Grant(scope="reader", clusters=frozenset({"east"})),
        OTHER: Grant(scope="reader", projects=frozenset({"red"})),
        "f" * 20: Grant(),
    }
    store = str(tmp_path_factory.mktemp("store") / "l.db")
    clusters = frozenset({"east", "west"})
    with application(store, readers=Tokens(tokens), clusters=clusters) as (client, parts, _):
        now = time.time() - 100
        promise: dict[str, Any] = {"deadline_time": time.time() + 3600, "declared_tokens": 10**9}
        for name, cluster, project in (
            ("er", "east", "red"), ("eb", "east", "blue"), ("wr", "west", "red"),
            ("same", "east", "red"), ("same", "west", "blue"),
        ):  # fmt: skip
            story = Story(job_id=name, cluster=cluster, now=now)
            story.start(num_nodes=1, num_gpus=8, project=project, **promise)
            bad = {**story.events[-1], "id": f"bad-{name}-{cluster}", "fields": [], "kind": "hang"}
            client.post("/api/events", content=delivery([*story.events, bad]))
        parts.windows.refresh()
        yield client


@pytest.mark.parametrize(
    ("token", "jobs", "letters"),
    [
        (TOKEN, {"er", "eb", "same"}, {"er", "eb"}),
        (OTHER, {"er", "wr", "same"}, {"er", "wr"}),
        ("f" * 20, {"er", "eb", "wr", "same"}, {"er", "eb", "wr", "same"}),
    ],
)
def test_a_reader_sees_the_jobs_of_its_clusters_and_projects_alone(
    readers: TestClient, token: str, jobs: set[str], letters: set[str]
) -> None:
    def get(path: str) -> Any:
        return readers.get(path, headers=bearer(token))

    listed = get("/api/jobs").json()["jobs"]
    assert {job["job_id"] for job in listed} == jobs
    for name in ("er", "eb", "wr"):
        status = 200 if name in jobs else 404
        assert get(f"/api/jobs/{name}").status_code == status
        assert get(f"/jobs/{name}").status_code == status
        assert (f">{name}<" in get("/").text) == (name in jobs)
    page = get("/api/dead-letters").json()["dead_letters"]
    assert {letter["job_id"] for letter in page} == letters


def test_a_scrape_holds_the_series_of_the_reader_alone(readers: TestClient) -> None:
    by_cluster = readers.get("/metrics", headers=bearer(TOKEN)).text
    assert 'cluster="east"' in by_cluster
    assert 'cluster="west"' not in by_cluster
    assert 'job_id="er"' in by_cluster
    by_project = readers.get("/metrics", headers=bearer(OTHER)).text
    assert 'cluster="west",queue="",project="red"' in by_project
    for hidden in ('project="blue"', "job_id=", "slo=", 'job_status="'):
        assert hidden not in by_project
    assert "lockstep_ledger_events_stored " in by_project


def test_a_reader_of_one_cluster_is_shown_no_other_by_an_ambiguous_id(readers: TestClient) -> None:
    answer = readers.get("/api/jobs/same", headers=bearer(TOKEN))
    assert (answer.status_code, answer.json()["cluster"]) == (200, "east")
    assert readers.get("/api/jobs/same", headers=bearer("f" * 20)).status_code == 400


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "must hold one token a line"),
        ("short\n", "16 characters"),
        ("ü" * 20, "more than ASCII"),
        (f"{TOKEN}\n" * 4000, "longer than 65536 bytes; give fewer tokens"),
        (f"# ours\n{TOKEN} color=red", "line 2: word 'color=red' is unknown; give one of scope="),
        (f"{TOKEN} scope=reader", "line 1: scope 'reader' does not belong here; give agent or"),
        (f"{TOKEN} scope=", "line 1: scope '' does not belong here"),
        (f"{TOKEN} scope=agent scope=agent", "line 1: scope is given twice"),
        (f"{TOKEN} clusters=a,,b", "line 1: clusters 'a,,b' must be names with commas between"),
        (f"{TOKEN} projects=", "line 1: projects '' must be names"),
        (f"{TOKEN} scope=agent owner=1", "line 1: owner belongs to a token of scope=launcher"),
        (f"{TOKEN} scope=launcher owner=root", "line 1: owner 'root' must be a user id, 0 to"),
        (f"{TOKEN} scope=launcher owner=4294967295", "must be a user id, 0 to 4294967294"),
        (f"{TOKEN} scope=launcher node=n", "line 1: node 'n' must be the name of the node of a"),
        (f"{TOKEN}\n{TOKEN}", "line 2: the token was given before; keep one"),
    ],
)
def test_a_wrong_word_in_a_token_file_is_named_with_its_line(
    tmp_path: Path, text: str, sentence: str
) -> None:
    path = tmp_path / "tokens"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(sentence)) as refusal:
        read_tokens(path, WRITER_SCOPES)
    assert "\n" not in str(refusal.value)
    options = ["--writer-tokens", str(path), "--store", str(tmp_path / "l.db")]
    result = CliRunner().invoke(serve, [*options, "--listen", "127.0.0.1:0"])
    assert result.exit_code == 2
    assert TOKEN not in result.output


def test_the_words_of_a_token_become_its_grant(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(
        f"# writers\n{TOKEN}\n\n{OTHER}  scope=launcher clusters=a,b owner=1000 projects=x\n",
        encoding="ascii",
    )
    tokens = read_tokens(path, WRITER_SCOPES)
    assert tokens.grant(f"Bearer {TOKEN}") == Grant()
    assert tokens.grant(f"bearer {OTHER}") == Grant(
        scope="launcher", clusters=frozenset("ab"), projects=frozenset("x"), owner=1000
    )
    for header in ("", "Bearer", "Bearer x", "Basic !", "Basic eA==", f"Digest {TOKEN}"):
        assert tokens.grant(header) is None


def test_a_token_file_that_all_may_read_is_read_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tokens"
    path.write_text(TOKEN, encoding="ascii")
    path.chmod(0o600)
    with caplog.at_level(logging.WARNING):
        assert read_token_lines(path)[0].token == TOKEN
        assert caplog.messages == []
        path.chmod(0o644)
        read_token_lines(path)
    [message] = caplog.messages
    assert message.startswith("token_file=readable_by_all path=")
