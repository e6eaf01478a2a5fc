"""How feed, server, ledger or token go away and come back: the ways of `outages_by_way`."""

from collections.abc import Callable
from dataclasses import dataclass

from .scenario import Cluster


@dataclass(frozen=True)
class Way:
    """A way to be away.

    Attributes:
        word: of the names of its jobs.
        sees_all: the feed sees what happens meanwhile, so the record is as exact as without it.
        lab_wide: the server restarts for all.
    """

    word: str
    why: str
    leave: Callable[[Cluster], None]
    come_back: Callable[[Cluster], None]
    sees_all: bool = False
    lab_wide: bool = False


def _stop_feed(c: Cluster) -> None:
    c.stop("feed")


def _kill_feed(c: Cluster) -> None:
    c.kill("feed")


def _start_feed(c: Cluster) -> None:
    c.start("feed")


def _compact_and_start_feed(c: Cluster) -> None:
    c.compact()
    c.start("feed")


def _stop_ledger(c: Cluster) -> None:
    c.stop("ledger")


def _start_ledger(c: Cluster) -> None:
    c.start("ledger")


def _kill_ledger_and_stop_feed_later(c: Cluster) -> None:
    c.kill("ledger")


def _restart_feed_then_ledger(c: Cluster) -> None:
    """The feed dies while it still holds what the ledger has not got."""
    c.kill("feed")
    c.start("ledger")
    c.start("feed")


def _revoke(c: Cluster) -> None:
    c.revoke_token()
    c.wait(12)  # the server remembers a token for ten seconds


def _rotate(c: Cluster) -> None:
    c.rotate_token()


def _kill_leader(c: Cluster) -> None:
    c.start("feed-2")
    c.wait(2)
    c.kill("feed")


def _end_second_feed(c: Cluster) -> None:
    c.start("feed")
    c.wait(1)
    c.stop("feed-2")


WAYS = (
    Way("stopped", "the feed is stopped", _stop_feed, _start_feed),
    Way("killed", "the feed is killed", _kill_feed, _start_feed),
    Way("expired", "the feed is stopped and all revisions grow too old (410)", _stop_feed,
        _compact_and_start_feed, lab_wide=True),
    Way("ledger", "the ledger is away and the feed goes on", _stop_ledger, _start_ledger,
        sees_all=True),
    Way("both", "the ledger is killed, and then the feed with what it held",
        _kill_ledger_and_stop_feed_later, _restart_feed_then_ledger),
    Way("token", "the feed's token is revoked until it is rotated", _revoke, _rotate),
    Way("leader", "of two feeds the leading one is killed", _kill_leader, _end_second_feed),
)  # fmt: skip
