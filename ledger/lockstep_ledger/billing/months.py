"""Months that are closed: their lines stay as they were billed, and late truth is a correction.

Whatever changes a job of a closed month makes a difference, which is shown until somebody books it
as lines of the open month, with who, when, why and the event.
"""

from collections.abc import Iterable, Sequence
from datetime import tzinfo
from decimal import Decimal

import msgspec
from msgspec.structs import asdict, replace
from sqlalchemy import Connection, insert, select

from lockstep_ledger.money.accrual import Line
from lockstep_ledger.money.calendar import next_month
from lockstep_ledger.money.rate_card import RateCard
from lockstep_ledger.store.tables import closed_months, events, statement_lines

_NOTHING = (Decimal(0), Decimal(0))
_decode = msgspec.json.Decoder(Line).decode


class ClosedMonth(msgspec.Struct, frozen=True, kw_only=True):
    """A month that was closed: in which zone, by which rate card, when and by whom."""

    month: str
    zone: str
    rate_card: str
    closed: float
    author: str


def list_closed(connection: Connection, zone: tzinfo | None = None) -> dict[str, ClosedMonth]:
    """The closed months in their order.

    Raises:
        ValueError: they were closed in another zone than this one.
    """
    query = select(closed_months).order_by(closed_months.c.month)
    closed = {row["month"]: ClosedMonth(**row) for row in connection.execute(query).mappings()}
    for month in closed.values():
        if zone is not None and month.zone != str(zone):
            raise ValueError(
                f"--timezone {zone} is not that of {month.month}, which was closed in {month.zone};"
                f" give --timezone {month.zone}"
            )
    return closed


def read_lines(connection: Connection, months: Iterable[str], column: str = "month") -> list[Line]:
    """Stored lines: those billed in some months, or by ``corrects`` those that correct them."""
    where = statement_lines.c[column].in_(list(months))
    query = select(statement_lines.c.body).where(where).order_by(statement_lines.c.number)
    return [_decode(body) for body in connection.execute(query).scalars()]


def close_month(connection: Connection, closed: ClosedMonth, lines: Sequence[Line]) -> None:
    """Stores the lines of a month for good.

    Raises:
        ValueError: the month is not the one after the last that was closed.
    """
    last = max(list_closed(connection), default=None)
    if last is not None and closed.month != next_month(last):
        raise ValueError(
            f"month {closed.month} cannot be closed; the next one is {next_month(last)}"
        )
    connection.execute(insert(closed_months), asdict(closed))
    _store(connection, lines)


def find_differences(
    connection: Connection, closed: ClosedMonth, computed: Iterable[Line], card: RateCard
) -> list[Line]:
    """What the bookings of a closed month lack, as corrections that nobody has booked yet."""
    own = [line for line in read_lines(connection, [closed.month]) if not line.corrects]
    billed = own + read_lines(connection, [closed.month], "corrects")
    due, paid = _sums(computed), _sums(billed)
    newest = {_key(line): line for line in (*billed, *computed)}
    booked = {line.job.number: line.booked for line in billed if line.booked}
    return [
        replace(
            newest[key],
            month="",
            corrects=closed.month,
            price=None,
            amount=due.get(key, _NOTHING)[0] - paid.get(key, _NOTHING)[0],
            gpu_seconds=due.get(key, _NOTHING)[1] - paid.get(key, _NOTHING)[1],
            days={},
            states={"correction": Decimal(1)},
            event=_changed_by(connection, key[0], booked.get(key[0], closed.closed), closed, card),
        )
        for key in sorted(due.keys() | paid.keys())
        if due.get(key, _NOTHING) != paid.get(key, _NOTHING)
    ]


def book(
    connection: Connection, differences: Iterable[Line], *, author: str, reason: str, now: float
) -> list[Line]:
    """Stores differences as corrections of the open month; returns them."""
    month = next_month(max(list_closed(connection)))
    audit = {"author": author, "reason": reason, "booked": now}
    days = {f"{month}-01": Decimal(1)}
    lines = [replace(line, month=month, days=days, **audit) for line in differences]
    _store(connection, lines)
    return lines


def _key(line: Line) -> tuple[int, str, str]:
    """Who pays for which job in which currency: a job that changes hands is a difference too."""
    return line.job.number, line.job.project, line.currency


def _sums(lines: Iterable[Line]) -> dict[tuple[int, str, str], tuple[Decimal, Decimal]]:
    sums: dict[tuple[int, str, str], tuple[Decimal, Decimal]] = {}
    for line in lines:
        amount, seconds = sums.get(_key(line), _NOTHING)
        sums[_key(line)] = (amount + line.amount, seconds + line.gpu_seconds)
    return sums


def _changed_by(
    connection: Connection, job: int, since: float, closed: ClosedMonth, card: RateCard
) -> str:
    """The newest event of a job since a month was closed or corrected, else the rate card."""
    query = select(events.c.id).where(events.c.job == job, events.c.received > since)
    event = connection.execute(query.order_by(events.c.sequence.desc()).limit(1)).scalar()
    if event is None and card.digest != closed.rate_card:
        return f"rate card {card.digest}"
    return event or ""


def _store(connection: Connection, lines: Sequence[Line]) -> None:
    rows = [
        {
            "month": line.month,
            "corrects": line.corrects,
            "job": line.job.number,
            "project": line.job.project,
            "currency": line.currency,
            "amount": str(line.amount),
            "body": msgspec.json.encode(line).decode(),
        }
        for line in lines
    ]
    if rows:
        connection.execute(insert(statement_lines), rows)
