"""Whatever JSON is sent as events, the ledger stores or refuses it, settles, shows and counts."""

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from lockstep_ledger.ingest.document import read_delivery
from lockstep_ledger.store import queries
from lockstep_ledger.store.tables import jobs
from lockstep_ledger.store.transaction import Submission
from lockstep_records.events.kinds import EVENT_KINDS

from ..stories import BEGIN
from .open_writer import NOW, metrics, opened

NUMBERS = st.sampled_from(
    [0, -1, 1, 8, 2**31, 2**53, 2**53 + 1, 10**30, 0.0, -0.0, 1e15, 1e300, 5e-324]
)
TEXTS = st.text(max_size=12) | st.sampled_from(
    ["Xid²", " ", "\x00", "\ud800", "n1", "failed", "xid"]
)
SCALARS = st.none() | st.booleans() | NUMBERS | TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=8,
)


def examples(kind: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Fields of a kind: right ones, and any."""
    right: dict[str, st.SearchStrategy[Any]] = {
        spec.name: st.sampled_from(spec.values) if spec.values and spec.shape == "text" else NUMBERS
        for spec in kind.fields
    }
    some = st.fixed_dictionaries({}, optional={name: right[name] | VALUES for name in right})
    return st.builds(lambda a, b: {**b, **a}, some, st.dictionaries(TEXTS, VALUES, max_size=2))


DOCUMENTS = st.lists(
    st.sampled_from(EVENT_KINDS).flatmap(
        lambda kind: st.fixed_dictionaries(
            {
                "id": TEXTS | st.uuids().map(str),
                "kind": st.just(kind.name) | TEXTS,
                "job_id": st.sampled_from(["a", "b"]) | TEXTS,
                "attempt": st.integers(0, 2) | VALUES,
                "time": st.floats(BEGIN, NOW) | VALUES,
                "fields": examples(kind) | VALUES,
            },
            optional={
                "owner": st.integers(0, 1) | VALUES,
                "node": TEXTS,
                "cluster": TEXTS,
                "x": VALUES,
            },
        )
    )
    | VALUES,
    max_size=6,
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(documents=DOCUMENTS)
def test_whatever_is_sent_the_ledger_settles_shows_and_counts(documents: list[Any]) -> None:
    read = read_delivery(
        json.dumps({"version": 1, "node": "n1", "events": documents}).encode(), NOW
    )
    assert len(read.events) + len(read.refused) == len(documents)
    assert all(letter.reason and "\n" not in letter.reason for letter in read.refused)
    sent = Submission(list(read.events), list(read.refused))
    with opened("sqlite:///:memory:") as writer:
        writer.write([sent])
        assert sent.stored + sent.duplicates + len(sent.refused) == len(documents)
        assert not [letter for letter in sent.refused if "cannot be applied" in letter.reason]
        writer.settle_due()
        with writer._engine.connect() as connection:
            for row in connection.execute(select(jobs)).all():
                assert json.dumps(queries.job_document(connection, row), allow_nan=False)
        assert metrics(writer)
