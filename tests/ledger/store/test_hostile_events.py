"""What one tenant sends harms nobody: the ledger goes on, and others' jobs are as they were."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text, update

from lockstep_ledger.ingest.document import RefusedEvent, read_delivery
from lockstep_ledger.merge.facts import JobFacts
from lockstep_ledger.store import queries
from lockstep_ledger.store.tables import ASIDE_TIME, dead_letters, jobs
from lockstep_ledger.store.transaction import Submission
from lockstep_ledger.store.windows import count_windows
from lockstep_ledger.store.writer import StoreWriter

from ..model.stored import differences
from ..stories import BEGIN, Story, checked, delivery
from .open_writer import NOW, metrics, opened


@pytest.fixture(name="store")
def _store(tmp_path: Path) -> str:
    return str(tmp_path / "ledger.db")


def submission(*stories: Story, owner: int | None = None) -> Submission:
    events = [replace(event, owner=owner) for story in stories for event in checked(story)]
    return Submission(events)


def document_of(writer: StoreWriter, job_id: str = "job-1") -> dict[str, Any]:
    with writer._engine.connect() as connection:
        [row] = queries.find_job(connection, job_id, "east")
        return queries.job_document(connection, row)


def letters(writer: StoreWriter) -> list[Any]:
    with writer._engine.connect() as connection:
        return list(connection.execute(select(dead_letters)).all())


def goodput_of(writer: StoreWriter) -> list[Any]:
    """GPU-seconds that the windows count."""
    query = "SELECT sum(total) FROM slo_events WHERE slo = 'goodput'"
    with writer._engine.connect() as connection:
        return list(connection.execute(text(query)).all())


HOSTILE: list[tuple[str, dict[str, Any]]] = [
    ("job_finished", {"outcome": "failed", "reason": "\ud800"}),
    ("job_finished", {"outcome": "failed", "reason": "a\x00b"}),
    ("job_finished", {"outcome": "failed", "reason": "\x1b[2J"}),
    ("job_finished", {"outcome": "failed", "colour\u202e": 1}),
    ("job_started", {"num_nodes": 10**9}),
    ("job_started", {"num_gpus": 2**53 + 1}),
    ("job_started", {"price_per_gpu_hour": 1e24}),
    ("job_started", {"declared_tokens": 10**400}),
    ("job_started", {"deadline_time": 1e300}),
    ("job_started", {"anything": [[[[[[[[[[1]]]]]]]]]]}),
    ("attempt_started", {"ranks": list(range(20_000))}),
    ("checkpoint_failed", {"total": 10**12, "outcome": "failed"}),
    ("ledger_settled", {}),
    ("of_the_future", {"x": {str(number): [0] * 100 for number in range(4000)}}),
]


@pytest.mark.parametrize(("kind", "fields"), HOSTILE)
def test_an_event_beyond_a_bound_is_refused_by_itself(kind: str, fields: dict[str, Any]) -> None:
    story = Story().add(kind, **fields).start()
    read = read_delivery(delivery(story.events), BEGIN)
    [refused] = read.refused
    assert refused.refusal == "value"
    assert refused.id == story.events[0]["id"]
    assert refused.reason.count("\n") == 0
    assert len(refused.reason) < 400
    assert len(read.events) == 2


@pytest.mark.parametrize("number", ["1e999", "-1e999", "1" * 401])
def test_a_number_beyond_all_floats_is_refused(number: str) -> None:
    body = delivery(Story().add("job_resumed", step=0, seconds=770_077_177).events)
    read = read_delivery(body.replace(b"770077177", number.encode()), BEGIN)
    assert [letter.refusal for letter in read.refused] == ["value"]


def test_an_event_that_fails_is_found_and_all_others_are_stored(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = JobFacts.take

    def fail_on_one(facts: JobFacts, event: Any) -> None:
        if event.fields.get("trap"):
            raise RecursionError("deep")
        take(facts, event)

    monkeypatch.setattr(JobFacts, "take", fail_on_one)
    stories = [Story(job_id=f"job-{n}").start().after(9).end() for n in range(20)]
    stories[7].add("of_the_future", trap=True)
    submissions = [submission(story) for story in stories]
    submissions[3].refused = [RefusedEvent(refusal="type", reason="of the check", id="early")]
    with opened(dsn) as writer:
        writer.write(submissions)
        assert [s.stored for s in submissions] == [4] * 20
        [refused] = submissions[7].refused
        assert (refused.refusal, refused.id) == ("value", stories[7].events[-1]["id"])
        assert "of_the_future of job job-7 cannot be applied" in refused.reason
        assert {letter.event_id for letter in letters(writer)} == {"early", refused.id}
        assert differences(writer._engine) == []


def test_a_value_that_the_database_does_not_take_costs_its_event_alone(dsn: str) -> None:
    good, bad = checked(Story().start()), checked(Story(job_id="bad").start())[0]
    sent = Submission([*good, replace(bad, node="n\ud8001")])
    with opened(dsn) as writer:
        writer.write([sent])
        assert (sent.stored, len(sent.refused)) == (2, 1)
        assert len(letters(writer)) == 1


def test_a_job_that_cannot_be_settled_is_left_aside_also_after_a_restart(dsn: str) -> None:
    with opened(dsn) as writer:
        for job_id in ("bad", "good"):
            writer.write([submission(Story(job_id=job_id).start(num_nodes=2).after(9).end())])
        with writer._engine.begin() as connection:
            connection.execute(update(jobs).where(jobs.c.job_id == "bad").values(facts="{"))
    for due in (2, 0):
        with opened(dsn) as writer:
            assert writer.settle_due() == due
            assert document_of(writer, "good")["status"] == "finished"
            assert count_windows(writer._engine, NOW).jobs_aside == 1
            with writer._engine.connect() as connection:
                query = select(jobs.c.settle_at).where(jobs.c.job_id == "bad")
                assert connection.execute(query).scalar() == ASIDE_TIME
            late = submission(Story(job_id="bad").add("job_finished", outcome="failed"))
            writer.write([late])
            assert (late.stored, late.refused[0].refusal) == (0, "value")


def test_the_first_owner_of_a_job_keeps_it(dsn: str) -> None:
    with opened(dsn) as writer:
        writer.write([submission(Story().add("job_submitted", None))])
        writer.write([submission(Story().start(), owner=1001)])
        before = document_of(writer)
    with opened(dsn) as writer:
        attack = submission(Story(now=BEGIN + 5).end("failed", failure_class="infra"), owner=0)
        writer.write([attack])
        assert [letter.refusal for letter in attack.refused] == ["owner", "owner"]
        assert "is of user 1001, and attempt_ended of n1 is of user 0" in attack.refused[0].reason
        assert document_of(writer) == before
        assert len(letters(writer)) == 1
        assert before["owner"] == 1001
        of_scheduler = submission(
            Story(now=BEGIN + 9).add("job_finished", None, outcome="cancelled")
        )
        own = submission(Story(now=BEGIN + 8).end(), owner=1001)
        elsewhere = submission(Story(cluster="west").start(), owner=7)
        writer.write([own, of_scheduler, elsewhere])
        assert (own.stored, of_scheduler.stored, elsewhere.stored) == (2, 1, 2)


@pytest.mark.parametrize("ended", [0, 60, 100])
def test_no_events_add_more_gpu_time_than_the_gpus_have_had(store: str, ended: int) -> None:
    """A node with 8 GPUs of which events speak for 100 s, in spans that end after some of them."""
    price: dict[str, Any] = {"num_gpus": 8, "num_nodes": 1, "price_per_gpu_hour": 2.0}
    story = Story().start(**price).after(100)
    story.add("goodput", rank_seconds={"productive": 9e14}, num_ranks=8, num_gpus=8)
    story.add("job_preempted", lost_gpu_seconds=1e14)
    for attempt in range(20):  # the same hundred seconds again and again
        totals = {"productive": 800.0}
        story.add("goodput", attempt=attempt, rank_seconds=totals, num_ranks=8, num_gpus=8)
        story.now = BEGIN + ended
        story.add("attempt_ended", attempt=attempt, outcome="failed").after(100 - ended)
        story.add("attempt_started", attempt=attempt + 1)
    for _ in range(5):
        story.now = BEGIN + ended
        story.end().after(100 - ended).start(attempt=50, **price)
    sent = submission(story)
    with opened(store) as writer:
        writer.write([sent])
        assert {letter.refusal for letter in sent.refused} == {"implausible"}
        assert "states 9e+14 rank_seconds" in sent.refused[0].reason
        record = document_of(writer)
        # The first end ends the only span that lasts; all that begin after 100 s have no length.
        assert record["gpu_seconds"] == 8 * ended
        [(counted,)] = goodput_of(writer)
        assert 0 < counted <= 8 * (100 * 1.1 + 120)
        assert differences(writer._engine) == []
        assert sum(record["costs"].values()) == pytest.approx(record["gpu_seconds"] / 3600 * 2.0)
        assert record["lost_gpu_seconds"] <= 8 * 100


def test_a_node_states_neither_a_thousand_gpus_nor_events_of_years_ago(store: str) -> None:
    old = Story(now=BEGIN - 500 * 86_400).start()
    many = Story().start().add("attempt_started", num_gpus=100_000)
    with opened(store) as writer:
        sent = Submission(
            [replace(event, owner=7, received=BEGIN) for s in (old, many) for event in checked(s)]
        )
        writer.write([sent])
        assert [letter.refusal for letter in sent.refused] == ["implausible"] * 3
        assert sent.stored == 2


def test_invented_names_are_counted_as_other(dsn: str) -> None:
    clusters = frozenset({"east"})
    sent = []
    with opened(dsn, clusters) as writer:
        for number in range(300):
            names: dict[str, Any] = {
                "queue": f"q{number}",
                "project": f"p{number}",
                "job_class": f"c{number}",
            }
            story = Story(job_id=f"j{number}", cluster=f"c{number}").start(**names).after(9).end()
            sent.append(submission(story))
        writer.write(sent)
        writer.write([submission(Story().start(project="own").after(9).end())])
        assert differences(writer._engine) == []
        lines = metrics(writer, clusters).splitlines()
        assert not [line for line in lines if 'cluster="c' in line]
        assert any('cluster="other"' in line for line in lines)
        assert any('project="own"' in line for line in lines)
        assert len(lines) < 60_000
        assert document_of(writer)["project"] == "own"
        with writer._engine.connect() as connection:
            assert queries.find_job(connection, "j7", "c7")[0].cluster == "c7"


def test_names_that_an_earlier_ledger_counted_are_served_no_more(dsn: str) -> None:
    with opened(dsn) as writer:
        for number in range(5):
            writer.write([submission(Story(cluster=f"invented-{number}").start().after(9).end())])
    clusters = frozenset({"east"})
    with opened(dsn, clusters) as writer:
        writer.write([submission(Story().start().after(9).end())])
        assert "invented" not in metrics(writer, clusters)
        with writer._engine.connect() as connection:
            numbers = connection.execute(text("SELECT count(*), max(number) FROM counters")).one()
        assert numbers[0] == numbers[1]
