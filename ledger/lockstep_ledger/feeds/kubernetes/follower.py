"""Follows the objects of one kind: one list in pages, then its changes, over every outage."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal

from lockstep_ledger.feeds.kubernetes.objects import Kind, count_of, list_of, part_of, text_of
from lockstep_ledger.feeds.kubernetes.server import ApiServer, Failure, ServerError
from lockstep_records.text.printable import printable

_log = logging.getLogger(__name__)
_PAGE = 500
_WATCH_SECONDS = 50
_FIRST_WAIT_SECONDS, _LAST_WAIT_SECONDS, _REFUSED_WAIT_SECONDS = 0.3, 3.0, 10.0
State = Literal["listing", "followed", "refused", "away", "absent"]


@dataclass(frozen=True, slots=True)
class Change:
    """Something that was seen of an object, or (without one) of a whole list.

    Attributes:
        word: seen or gone of an object; listed of a kind, with the uids that are there.
        seen_until: of a list: until when changes were seen before it.
    """

    kind: Kind
    namespace: str
    word: Literal["seen", "gone", "listed"]
    time: float
    item: Any = None
    uids: frozenset[str] = frozenset()
    seen_until: float = 0.0


class Follower(threading.Thread):
    """A kind in a namespace, or in all; ``contact`` is the last answer by the server's clock."""

    def __init__(
        self, server: ApiServer, kind: Kind, namespace: str, put: Callable[[Change], None]
    ) -> None:
        super().__init__(name=f"follow-{kind.name}", daemon=True)
        self.kind, self.namespace, self.state = kind, namespace, "listing"
        self.contact, self.lists = 0.0, 0
        self._server, self._put, self._ending = server, put, threading.Event()
        self._version, self._complaint, self._missing = "", "", 0

    def end(self) -> None:
        """End at the next change or time-out."""
        self._ending.set()

    @property
    def is_settled(self) -> bool:
        """Whether all is known that can be known at present."""
        return self.state in {"followed", "refused", "absent"}

    def run(self) -> None:
        """Follow until the end, or until the server has the kind no more."""
        wait = _FIRST_WAIT_SECONDS
        while not self._ending.is_set():
            try:
                if not self._version:
                    self._list()
                self.state, self._complaint = "followed", ""
                self._watch()
                wait = 0.0
            except ServerError as error:
                self._missing = self._missing + 1 if error.status == HTTPStatus.NOT_FOUND else 0
                if self._missing > 1:  # a server that has just started may not have all its kinds
                    self.state = "absent"
                    self._put(self._change("listed", seen_until=self.contact))
                    return
                if error.status == HTTPStatus.GONE:
                    self._version, wait = "", 0.0
                elif error.status == HTTPStatus.FORBIDDEN:
                    self._version, wait = "", _REFUSED_WAIT_SECONDS
                    self._complain("refused", f"{error}; grant list and watch to the account")
                elif not self._missing:
                    self._complain("away", str(error))
            except Failure as error:
                self._complain("away", str(error))
            self._ending.wait(wait)
            wait = min(max(2 * wait, _FIRST_WAIT_SECONDS), _LAST_WAIT_SECONDS)

    def _complain(self, state: State, reason: str) -> None:
        """Log the first failure of a kind; the next is logged after a success."""
        if self._complaint != state:
            word = "forbidden" if state == "refused" else state
            text = printable(reason, 500)
            _log.warning("kubernetes=%s kind=%s reason=%r", word, self.kind.name, text)
        self.state, self._complaint = state, state

    def _change(self, word: Literal["seen", "gone", "listed"], **rest: Any) -> Change:
        self.contact = self._server.clock.now()
        return Change(self.kind, self.namespace, word, self.contact, **rest)

    def _list(self) -> None:
        path, position, uids = self.kind.path(self.namespace), "", set()
        until = self.contact or self._server.clock.now()
        while True:
            query = {"limit": _PAGE} | ({"continue": position} if position else {})
            page = part_of(self._server.send("GET", path, query))
            for item in list_of(page.get("items")):
                uids.add(text_of(part_of(item, "metadata").get("uid")))
                self._put(self._change("seen", item=item))
            position = text_of(part_of(page, "metadata").get("continue"))
            if not position:
                break
        self._version = text_of(part_of(page, "metadata").get("resourceVersion"))
        self._put(self._change("listed", uids=frozenset(uids), seen_until=until))
        self.lists += 1

    def _watch(self) -> None:
        query = {
            "watch": "1", "allowWatchBookmarks": "true", "resourceVersion": self._version,
            "timeoutSeconds": _WATCH_SECONDS,
        }  # fmt: skip
        changes = self._server.watch(self.kind.path(self.namespace), query, _WATCH_SECONDS + 15)
        for change in changes:
            word, item = part_of(change).get("type"), part_of(change, "object")
            if word == "ERROR":
                raise ServerError(count_of(item.get("code")), text_of(item.get("message")))
            if word in {"ADDED", "MODIFIED"}:
                self._put(self._change("seen", item=item))
            elif word == "DELETED":
                self._put(self._change("gone", item=item))
            # Only after its change: whoever stops here sees the object again.
            self._version = (
                text_of(part_of(item, "metadata").get("resourceVersion")) or self._version
            )
            if self._ending.is_set():
                return
        self.contact = self._server.clock.now()
