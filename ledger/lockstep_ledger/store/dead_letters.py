"""The dead letters: what was refused, with the reason, for people to look at."""

import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, delete, func, select

from lockstep_ledger.ingest.document import RefusedEvent
from lockstep_ledger.store.database import chunks_of, insert_into
from lockstep_ledger.store.queries import Limits, first_rows, within
from lockstep_ledger.store.tables import dead_letters, jobs

MAX_LETTERS = 10_000
"""Of each refusal; the oldest go, so that no client fills the disk with refused requests."""

_MAX_BODY = 66_000  # an event of the longest form, with its origin


def keep(
    connection: Connection, refused: Sequence[RefusedEvent], client: str, now_seconds: float
) -> None:
    """Stores refused events; one that is sent again with the same fault is stored once."""
    if not refused:
        return
    rows = [
        {
            "received": now_seconds,
            "refusal": letter.refusal,
            "reason": _storable(letter.reason),
            "event_id": _name(letter.once or letter.id),
            "job_id": _name(letter.job_id),
            "node": _name(letter.node),
            "client": _name(client),
            "body": _storable(letter.body[:_MAX_BODY]),
        }
        for letter in refused
    ]
    connection.execute(insert_into(connection.dialect, dead_letters).on_conflict_do_nothing(), rows)


def read_events(
    connection: Connection, refusals: Collection[str], ids: Collection[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number and document of each letter, of these refusals and ids if given, the oldest first."""
    query = select(dead_letters.c.number, dead_letters.c.body).order_by(dead_letters.c.number)
    if refusals:
        query = query.where(dead_letters.c.refusal.in_(refusals))
    for number, body in connection.execute(query).all():
        try:
            document = json.loads(body)
        except ValueError:  # of a body that was none of events
            continue
        is_event = isinstance(document, dict) and "kind" in document
        if is_event and (not ids or document.get("id") in ids):
            yield number, document


def remove(connection: Connection, numbers: Sequence[int]) -> None:
    """Removes letters whose events are stored now."""
    for chunk in chunks_of(numbers):
        connection.execute(delete(dead_letters).where(dead_letters.c.number.in_(chunk)))


def _name(text: str | None) -> str | None:
    return None if text is None else _storable(text)[:200]


def _storable(text: str) -> str:
    """A text without what no database holds: surrogates, and with PostgreSQL NUL."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def trim(connection: Connection) -> None:
    """Removes the oldest letters of each refusal beyond the limit."""
    by_refusal = select(dead_letters.c.refusal, func.count()).group_by(dead_letters.c.refusal)
    for refusal, count in connection.execute(by_refusal).all():
        if count > MAX_LETTERS:
            own = dead_letters.c.refusal == refusal
            newest = select(dead_letters.c.number).where(own)
            newest = newest.order_by(dead_letters.c.number.desc()).offset(MAX_LETTERS - 1).limit(1)
            limit = connection.execute(newest).scalar()
            connection.execute(delete(dead_letters).where(own, dead_letters.c.number < limit))


def newest(
    connection: Connection, limit: int, before: int | None = None, limits: Limits | None = None
) -> list[dict[str, Any]]:
    """Letters, the newest first, at most 8 MiB of them; of a reader with limits his own jobs'."""
    query = select(dead_letters).order_by(dead_letters.c.number.desc()).limit(limit)
    if before is not None:
        query = query.where(dead_letters.c.number < before)
    if limits:
        own = within(select(jobs.c.number), limits)
        of_own = select(jobs.c.job_id).where(jobs.c.number.in_(own))
        of_others = select(jobs.c.job_id).where(jobs.c.number.not_in(own))
        query = query.where(dead_letters.c.job_id.in_(of_own))
        # A letter does not name its cluster: an id that others have too is not shown.
        query = query.where(dead_letters.c.job_id.not_in(of_others))
    return list(map(dict, first_rows(connection.execute(query).mappings())))
