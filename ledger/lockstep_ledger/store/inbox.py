"""Deliveries that wait for the leader; their events have ids, so they may be stored twice."""

from collections.abc import Sequence

import msgspec
from sqlalchemy import Connection, delete, func, insert, select

from lockstep_ledger.store import dead_letters as letters
from lockstep_ledger.store.tables import inbox
from lockstep_ledger.store.transaction import Submission
from lockstep_records.events.event import Event

MAX_DELIVERIES = 20_000
"""Some minutes of a large cluster. More is refused, and stays with the senders."""
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[Event]).decode


def put(connection: Connection, submissions: Sequence[Submission], now_seconds: float) -> None:
    """Leaves checked events for the leader, who alone can tell which of them are duplicates."""
    rows = [
        {"client": submission.client[:200], "events": _encode(submission.events).decode()}
        for submission in submissions
        if submission.events
    ]
    if rows:
        connection.execute(insert(inbox), rows)
    for submission in submissions:
        letters.keep(connection, submission.refused, submission.client, now_seconds)
        submission.stored = len(submission.events)


def count(connection: Connection) -> int:
    """How many deliveries wait."""
    return connection.execute(select(func.count()).select_from(inbox)).scalar() or 0


def read(connection: Connection, limit: int) -> dict[int, Submission]:
    """The oldest deliveries, by number."""
    query = select(inbox).order_by(inbox.c.number).limit(limit)
    return {
        row.number: Submission(_decode(row.events), [], row.client)
        for row in connection.execute(query)
    }


def remove(connection: Connection, numbers: Sequence[int]) -> None:
    """Removes deliveries whose events are stored."""
    connection.execute(delete(inbox).where(inbox.c.number.in_(numbers)))


def probe(connection: Connection) -> None:
    """Writes and leaves nothing: fails where the store takes no events, as on a full disk."""
    query = insert(inbox).values(client="", events="[]").returning(inbox.c.number)
    remove(connection, [connection.execute(query).scalar_one()])
