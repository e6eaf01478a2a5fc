"""Which connection is closed, and when."""

import socket

import pytest

from lockstep_ledger.web.server import (
    ANSWER_SECONDS,
    BODY_SECONDS,
    HEAD_SECONDS,
    MAX_CLIENT_CONNECTIONS,
    Connection,
    Connections,
)


class Pair:
    """Connections with a clock of their own, and the sockets that were closed."""

    def __init__(self, max_open: int) -> None:
        self.now = 0.0
        self.all = Connections(max_open, clock=lambda: self.now)
        self.closed: list[str] = []

    def open(self, name: str, client: str = "a") -> Connection:
        with socket.socket() as unused:
            connection = self.all.add(client, unused)
        assert connection is not None
        connection.close = lambda: self.closed.append(name)
        return connection


def test_the_connection_that_has_been_idle_for_longest_is_closed_first() -> None:
    pair = Pair(3)
    first, second, _third = (pair.open(name, name) for name in ("1", "2", "3"))
    pair.all.set_busy(first)
    pair.all.set_busy(second)
    pair.all.set_idle(second, 0)
    assert pair.open("fourth", "d")
    assert len(pair.all) == 3
    assert pair.open("fifth", "e")
    # The first is being answered.
    assert pair.closed == ["3", "2"]
    for connection in list(pair.all._idle):
        pair.all.set_busy(connection)
    with socket.socket() as unused:
        assert pair.all.add("f", unused) is None


def test_one_address_loses_its_own_connections_first() -> None:
    pair = Pair(10_000)
    pair.open("other", "b")
    for number in range(MAX_CLIENT_CONNECTIONS + 2):
        pair.open(str(number))
    assert pair.closed == ["0", "1"]
    assert len(pair.all) == MAX_CLIENT_CONNECTIONS + 1


@pytest.mark.parametrize("seconds", [HEAD_SECONDS, BODY_SECONDS, ANSWER_SECONDS])
def test_a_connection_is_closed_at_its_deadline(seconds: float) -> None:
    pair = Pair(10)
    connection = pair.open("a")
    pair.all.grant_seconds(connection, seconds)
    pair.now = seconds - 0.1
    pair.all.close_overdue()
    assert pair.closed == []
    pair.now = seconds
    pair.all.close_overdue()
    assert (pair.closed, len(pair.all)) == (["a"], 0)


def test_only_a_few_long_answers_may_wait_for_their_reader() -> None:
    pair = Pair(100)
    for number in range(20):
        pair.all.set_idle(pair.open(str(number), f"c{number}"), 1 << 20)
    assert pair.closed == ["0", "1", "2", "3"]
