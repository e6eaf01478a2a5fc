"""Finds the one event of a batch that cannot be stored, so that all others are."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError, StatementError

from lockstep_ledger.store.transaction import Submission, letter_of

_log = logging.getLogger(__name__)
_REFUSAL = "value"


def write_isolated(
    write: Callable[[Sequence[Submission]], None], submissions: Sequence[Submission]
) -> None:
    """Writes submissions in one transaction; if an event makes that fail, in smaller ones.

    The batch is halved until the event is found, which becomes a dead letter.

    Args:
        write: stores all that it is given or, by an error, nothing.
        submissions: filled in with what became of them.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: the store failed; it may hold a part of the submissions.
    """
    try:
        write(submissions)
    except Exception as error:
        if _is_of_store(error):
            raise
        if len(submissions) > 1:
            half = len(submissions) // 2
            write_isolated(write, submissions[:half])
            write_isolated(write, submissions[half:])
        elif submissions:
            _write_parts(write, submissions[0], error)


def _write_parts(
    write: Callable[[Sequence[Submission]], None], submission: Submission, error: Exception
) -> None:
    events, half = submission.events, len(submission.events) // 2
    if not events:
        _log.error("letters=lost client=%r reason=%r", submission.client, error)
        return
    if len(events) == 1:
        reason = f"{events[0].kind} of job {events[0].job_id} cannot be applied ({error!r:.300})"
        _log.error("event=refused id=%s reason=%r", events[0].id, reason)
        letter = letter_of(events[0], _REFUSAL, f"{reason}; it is kept here and left out")
        parts = [replace(submission, events=(), refused=[letter])]
    else:
        parts = [replace(submission, events=e, refused=[]) for e in (events[:half], events[half:])]
    parts.append(replace(submission, events=()))
    for part in parts:
        write_isolated(write, [part])
    submission.stored = sum(part.stored for part in parts)
    submission.duplicates = sum(part.duplicates for part in parts)
    submission.refused = [letter for part in parts for letter in part.refused]


def _is_of_store(error: Exception) -> bool:
    """Whether the database failed; of values that it cannot take the event is guilty."""
    if isinstance(error, DataError | IntegrityError):
        return False
    # A statement that failed before the database saw it held something that is not a value.
    is_of_values = isinstance(error, StatementError) and not isinstance(error, DBAPIError)
    return isinstance(error, SQLAlchemyError) and not is_of_values
