"""Who may say what of which job: rows by somebody who had not read the code, and random ones."""

import json
import random
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from sqlalchemy import Engine

from lockstep_ledger.billing import LINE_COLUMNS
from lockstep_ledger.ingest.document import DeliveryError, read_delivery
from lockstep_ledger.store import queries
from lockstep_ledger.store.database import open_store
from lockstep_ledger.store.tables import agents
from lockstep_ledger.store.transaction import Submission
from lockstep_ledger.store.writer import StoreWriter
from lockstep_ledger.web.intake import Grant, Tokens
from lockstep_records.events.kinds import KINDS

NOW = 1_795_000_000.0
STATEMENTS: dict[str, Any] = yaml.load(
    Path(__file__).with_name("speakers.yaml").read_text("utf-8"), yaml.CSafeLoader
)
SPEAKERS: dict[str, tuple[Grant, str, str]] = {
    name: (Grant(**grant, clusters=frozenset({cluster})), cluster, node)
    for name, (grant, cluster, node) in STATEMENTS["speakers"].items()
}
WRITERS = Tokens({name: grant for name, (grant, _, _) in SPEAKERS.items()})
IDS: dict[str, str] = STATEMENTS["ids"]
MEMBERS = frozenset({"node", "owner", "cluster", "job_id", "launcher", "time"})
Row = tuple[str, str, str, dict[str, Any]]
"""Speaker, kind, job, and members and fields of an event."""
STARTED, SUBMITTED = "job_started", "job_submitted"
WORLD: tuple[Row, ...] = tuple((*row,) for row in STATEMENTS["world"])


class Ledger:
    """A ledger to which speakers deliver one statement at a time."""

    def __init__(self, writer: StoreWriter) -> None:
        self.writer, self.count = writer, 0

    def say(self, row: Row, event_id: str = "") -> str:
        """A where it is stored, R where it is refused."""
        name, kind, job_id, stated = row
        _, cluster, node = SPEAKERS[name]
        self.count += 1
        event = {
            "id": event_id or f"event-{self.count}", "kind": kind, "job_id": job_id, "attempt": 0,
            "time": NOW + self.count,
            "fields": STATEMENTS["required"].get(kind, {})
            | {n: v for n, v in stated.items() if n not in MEMBERS and "." not in n},
        } | {n: v for n, v in stated.items() if n in MEMBERS}  # fmt: skip
        frame = {
            "version": 1, "cluster": stated.get("delivery.cluster", cluster),
            "node": stated.get("delivery.node", node), "events": [event],
        }  # fmt: skip
        grant = WRITERS.grant(f"Bearer {name}")
        assert grant is not None
        try:
            read = read_delivery(json.dumps(frame).encode(), NOW + 1000, grant.speaker)
        except DeliveryError:
            return "R"
        submission = Submission(read.events, [*read.refused], "", read.speaker)
        self.writer.write([submission])
        return "R" if submission.refused else "A"

    def jobs(self) -> dict[tuple[str, str], Any]:
        """What is known of each job, but for words that decide nothing."""
        with self.writer._engine.connect() as connection:
            rows = queries.list_jobs(connection, {}, 100)["jobs"]
            return {(row["cluster"], row["job_id"]): row for row in rows}

    def weighed(self) -> dict[tuple[str, str], Any]:
        """Of each job what a statement without weight does not change."""
        found = {}
        for cluster, job_id in self.jobs():
            document = self.document(job_id, cluster)
            found[cluster, job_id] = {name: document.get(name) for name in WEIGHED}
        return found

    def document(self, job_id: str, cluster: str = "east") -> dict[str, Any]:
        with self.writer._engine.connect() as connection:
            [row] = queries.find_job(connection, job_id, cluster)
            return queries.job_document(connection, row)


def in_memory(world: Engine | None = None) -> Ledger:
    """A ledger that holds what another store does."""
    store = open_store("sqlite:///:memory:")
    if world is not None:
        drivers = [engine.raw_connection().driver_connection for engine in (world, store)]
        cast("sqlite3.Connection", drivers[0]).backup(cast("sqlite3.Connection", drivers[1]))
    return Ledger(StoreWriter(store, clock=lambda: NOW + 1000))


@cache
def the_world() -> Ledger:
    ledger = in_memory()
    for row in WORLD:
        assert ledger.say(row) == "A", row
    return ledger


@cache
def weighed_before() -> dict[tuple[str, str], Any]:
    return the_world().weighed()


@contextmanager
def opened() -> Iterator[Ledger]:
    ledger = in_memory(the_world().writer._engine)
    ledger.count = len(WORLD)
    yield ledger


def rows() -> Iterator[Any]:
    for line in Path(__file__).with_name("speakers.txt").read_text("utf-8").splitlines()[1:]:
        name, speaker, kind, job, rest = line.split(" ", 4)
        stated, _, verdicts = rest.rpartition(" ")
        yield pytest.param((speaker, kind, IDS[job], json.loads(stated)), verdicts, id=name)


WEIGHED = (
    "project", "user", "costs", "owner", "status", "outcome", "cause_node", "gpus", "machines",
    "machine_gpus", "expected_nodes", "last_checkpoint_step", "voucher",
)  # fmt: skip


@pytest.mark.parametrize(("row", "verdicts"), [*rows()])
def test_a_statement_counts_as_its_row_says(row: Row, verdicts: str) -> None:
    with opened() as ledger:
        before = ledger.jobs()
        answer = ledger.say(row)
        after, now = ledger.jobs(), {} if "A" in verdicts else ledger.weighed()
    assert answer == "R" if verdicts == "R" else answer in {"A", *verdicts}, row
    if "A" not in verdicts:
        assert {key: now[key] for key in weighed_before()} == weighed_before()
    if answer == "R":
        assert after == before


def test_a_token_without_a_node_is_pinned_to_the_first_that_it_speaks_of() -> None:
    with opened() as ledger:
        assert ledger.say(("agent_unbound_token", STARTED, "new", {"owner": 7})) == "A"
        with ledger.writer._engine.connect() as connection:
            [pin] = connection.execute(agents.select()).all()
        assert pin.node == "node-5"
        for writer in (ledger.writer, None):
            restarted = Ledger(writer or StoreWriter(ledger.writer._engine))
            restarted.count = 100 if writer else 200
            other = {"owner": 7, "delivery.node": "node-6"}
            assert restarted.say(("agent_unbound_token", STARTED, "more", other)) == "R"
            taken = {"owner": 7, "delivery.node": "node-1"}
            assert restarted.say(("agent_unbound_token", STARTED, "more", taken)) == "R"
            assert restarted.say(("agent_unbound_token", STARTED, "new", {"owner": 7})) == "A"


def test_no_node_is_blamed_that_is_not_the_jobs_nor_counts_before_it_is_named() -> None:
    blame = {"outcome": "failed", "failure_class": "infra", "cause_node": "node-9"}
    early: Row = ("agent_n3", STARTED, "4242", {"owner": 2001})
    named: Row = ("feed_east", STARTED, "4242", {"uid": 2001, "nodes": ["node-[3-4]"]})
    with opened() as ledger:
        assert ledger.say(("launcher_1042_n1", "job_finished", "own-4", blame)) == "A"
        assert ledger.weighed()["east", "own-4"]["cause_node"] == "node-1"
        assert ledger.say(early) == "A"
        assert ledger.jobs()["east", "4242"]["status"] == "pending"
        assert ledger.say(named) == "A"
        assert ledger.weighed()["east", "4242"]["machines"] == 1


def test_a_node_more_than_a_job_states_takes_the_place_of_none() -> None:
    """Decision 29: its clock is its own, so the first that say they are there are not the true."""
    early = {"owner": 1042, "ranks": [0], "num_nodes": 2, "num_gpus": 8, "time": NOW - 500}
    with opened() as ledger:
        nodes = ledger.document("own-3")["nodes"]
        for kind in (STARTED, "attempt_started"):
            assert ledger.say(("agent_n1", kind, "own-3", early)) == "A"
        job = ledger.document("own-3")
    assert [node for node in job["nodes"] if node["node"] != "node-1"] == nodes
    assert (job["voucher"], job["costs"]) == ("nobody", {})


def test_a_line_of_the_bill_names_its_voucher() -> None:
    with opened() as ledger:
        jobs = ledger.weighed()
        assert jobs["east", "own-1"]["voucher"] == "scheduler"
        assert jobs["east", "own-4"]["voucher"] == "nobody"
    assert "voucher" in LINE_COLUMNS


def test_nobody_takes_the_place_of_anothers_event_by_its_id() -> None:
    end, start = {"outcome": "cancelled"}, {"uid": 2001, "nodes": ["node-2"]}
    with opened() as ledger:
        assert ledger.say(("launcher_1042_n1", STARTED, "mine", {}), "guessed") == "A"
        assert ledger.say(("agent_n1", STARTED, "own", {"owner": 2001}), "guessed") == "A"
        assert ledger.say(("launcher_1042_n1", STARTED, "mine", {}), "end") == "A"
        for _ in range(2):
            assert ledger.say(("feed_east", STARTED, "4242", start), "guessed") == "A"
            assert ledger.say(("feed_east", "job_finished", "4242", end), "end") == "A"
        job = ledger.document("4242")
        assert (job["outcome"], job["num_events"]) == ("cancelled", 3)
        assert ("east", "own") in ledger.jobs()


def test_the_scheduler_decides_whose_a_job_is_also_after_somebody_else_spoke() -> None:
    """The verdict is the same in either order."""
    alias = {"aliases": ["slurm:lab:9"]}
    claims: list[Row] = [
        ("launcher_1042_n1", STARTED, "9", {"num_gpus": 64}),
        ("launcher_1042_n1", STARTED, "theft", alias),
        ("agent_n1", STARTED, "own", {"owner": 2001, **alias}),
    ]
    word: Row = ("feed_east", SUBMITTED, "9", {"uid": 2001, **alias})
    found = []
    for order in ([word, *claims], [*claims, word]):
        with opened() as ledger:
            for row in order:
                ledger.say(row)
            jobs = ledger.jobs()
            with ledger.writer._engine.connect() as connection:
                [own] = queries.find_job(connection, "own", "east")
            found.append((own.job_id, own.owner, ("east", "theft") in jobs, own.gpu_seconds))
    assert found[0] == found[1] == ("9", 2001, True, found[0][3])


def test_no_alias_has_the_form_of_the_ledgers_own_names() -> None:
    with opened() as ledger:
        stolen = {"aliases": ["id:later", "wish:2001:slurm:lab:4242"]}
        assert ledger.say(("launcher_1042_n1", STARTED, "mine", stolen)) == "A"
        assert ledger.say(("agent_n1", STARTED, "later", {"owner": 2001})) == "A"
        assert ledger.jobs()["east", "later"]["job_id"] == "later"


TEXTS: list[Any] = ["", " ", "node-1", "node-2", "east", "west", "1042"]
VALUES = [*TEXTS, None, 0, 1042, 2001, [], True]
NAMES = ("node", "owner", "cluster", "launcher", "uid", "delivery.node", "project", "num_gpus")
TWINS = {f"{job}@{name}" for job in ("nb-1", "nb-3", "4242") for name in ("lab", "evil")}
JOBS = sorted({*IDS.values(), *TWINS, "theirs", "others"})
ALIASES = ["slurm:lab:4242", "slurm:lab:4343", "slurm:lab:4141", "id:4242", "torchrun:a",
           "slurm:evil:nb-1", "slurm:evil:nb-3", "slurm:evil:4242"]  # fmt: skip


NODES_AND_LAUNCHERS = [name for name in SPEAKERS if "feed" not in name]


def _random_row(rng: random.Random, names: Sequence[str] = NODES_AND_LAUNCHERS) -> Row:
    name = rng.choice(names)
    stated = {n: rng.choice(VALUES) for n in NAMES if rng.random() < 0.2}
    if rng.random() < 0.5 and SPEAKERS[name][0].scope == "agent":
        stated["owner"] = rng.choice((1042, 2001))
    if rng.random() < 0.3:
        stated["aliases"] = rng.sample(ALIASES, 2)
    kind = rng.choice((*KINDS, *[STARTED] * 20 * ("aliases" in stated)))
    return name, kind, rng.choice(JOBS), stated


@pytest.mark.parametrize(
    ("names", "untouched"),
    [
        (
            ("agent_n3", "agent_unbound_token", "agent_w1"),
            ("own-1", "nb-1", "nb-2", "4242", "4400"),
        ),
        (
            ("launcher_1042_n1", "launcher_no_uid", "launcher_1042_west"),
            ("nb-1", "nb-2", "nb-3", "4242", "4400", "team/Job/x"),
        ),
    ],
    ids=["wrong agent", "stolen launcher's token"],
)
def test_what_another_could_say_leaves_the_jobs_of_docs_security(
    names: tuple[str, ...], untouched: tuple[str, ...]
) -> None:
    rng = random.Random(5)
    with opened() as ledger:
        before = ledger.weighed()
        answers = [ledger.say(_random_row(rng, names)) for _ in range(1000)]
        after = ledger.weighed()
    assert answers.count("A") > len(before)
    for job in untouched:
        assert after["east", job] == before["east", job]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "number", [1000, pytest.param(100_000, marks=pytest.mark.release)]
)  # fmt: skip
def test_no_random_statement_changes_a_job_that_its_speaker_may_not(number: int) -> None:
    rng = random.Random(51)
    for done in range(0, number, 200):
        with opened() as ledger:
            after = ledger.jobs()
            for _ in range(min(200, number - done)):
                before, row = after, _random_row(rng)
                answer, after = ledger.say(row), ledger.jobs()
                name, _, _, stated = row
                grant = SPEAKERS[name][0]
                uid = grant.owner if grant.scope == "launcher" else stated.get("owner")
                for key, job in before.items():
                    is_other = job["cluster"] not in (grant.clusters or ())
                    if answer == "R" or is_other or job["owner"] not in {None, uid}:
                        assert after.get(key) == job, row
                    elif key in after:
                        for field in ("project", "user", "price_per_gpu_hour", "queue"):
                            assert after[key].get(field) == job.get(field), row
            for name, job_id in (("agent_n1", "nb-1"), ("agent_n2", "nb-2"), ("agent_n1", "nb-3")):
                count = ledger.document(job_id)["num_events"]
                assert ledger.say((name, "hang", job_id, {"owner": 2001})) == "A"
                assert ledger.document(job_id)["num_events"] == count + 1
