"""The whole feed over a server and a ledger that answer from memory."""

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest
from servers import wait_until

from lockstep_ledger.feeds.kubernetes import delivery
from lockstep_ledger.feeds.kubernetes.delivery import LedgerClient, Remembered
from lockstep_ledger.feeds.kubernetes.feed import Feed, Lease
from lockstep_ledger.feeds.kubernetes.server import ApiServer, ServerClock, ServerError

from .objects import job, pod


class Server(ApiServer):
    """A server of Jobs and pods; kinds whose plural is in ``away`` answer with status 500."""

    def __init__(self, **items: list[dict[str, Any]]) -> None:
        self.clock, self.items, self.away = ServerClock(), items, set[str]()
        self.lease: dict[str, Any] | None = None

    def send(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        accept: str = "",
    ) -> Any:
        del query, accept
        if path == "/apis":
            jobs = {
                "resource": "jobs", "scope": "Namespaced", "verbs": ["list", "watch"],
                "responseKind": {"kind": "Job"},
            }  # fmt: skip
            versions = [{"version": "v1", "resources": [jobs]}]
            return {"items": [{"metadata": {"name": "batch"}, "versions": versions}]}
        if "/leases" in path:
            if method == "GET" and self.lease is None:
                raise ServerError(404, "none")
            self.lease = self.lease if body is None else body
            return self.lease
        return {"items": self._find(path), "metadata": {"resourceVersion": "1"}}

    def watch(self, path: str, query: Mapping[str, Any], seconds: float) -> Iterator[Any]:
        del query, seconds
        self._find(path)
        time.sleep(0.05)
        yield {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "2"}}}

    def _find(self, path: str) -> list[dict[str, Any]]:
        plural = path.rpartition("/")[2]
        if plural in self.away:
            raise ServerError(500, "it is away")
        namespace = path.partition("/namespaces/")[2].partition("/")[0]
        return [
            each
            for each in self.items[plural]
            if namespace in {"", each["metadata"].get("namespace")}
        ]


class Ledger(LedgerClient):
    """Takes everything, and has nothing open."""

    def __init__(self) -> None:
        super().__init__("http://nowhere", "east", None, None)
        self.events, self.reports = list[dict[str, Any]](), list[dict[str, Any]]()

    def post(
        self, events: list[bytes], sent: float, report: dict[str, Any] | None
    ) -> tuple[int, dict[str, Any]]:
        del sent
        self.events += map(msgspec.json.decode, events)
        self.reports += [report] if report else []
        return 200, {}

    def find(self, job_id: str) -> Remembered | None:
        del job_id
        return None

    def list_open(self) -> Iterator[str]:
        return iter(())


@pytest.fixture(name="ending")
def _ending(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    monkeypatch.setattr(delivery, "_REPORT_SECONDS", 0.2)
    ending = threading.Event()
    yield ending
    ending.set()


def follow(
    server: Server, ledger: Ledger, ending: threading.Event, *namespaces: str
) -> threading.Thread:
    lease = Lease(server, "default", "feed", "me")
    assert lease.hold(None)
    feed = Feed(server, ledger, lease, ending, namespaces=namespaces)
    thread = threading.Thread(target=feed.run)
    thread.start()
    return thread


def test_a_job_is_told_and_the_report_says_until_when(ending: threading.Event) -> None:
    training, other = job("a"), pod("c", begin=1, gpus=0)
    broken = {"metadata": {"name": "no-uid"}}
    server = Server(jobs=[training], pods=[pod("p", training, begin=1), other, broken])
    ledger, begin = Ledger(), time.time()
    thread = follow(server, ledger, ending)
    wait_until(lambda: bool(ledger.reports) and ledger.reports[-1]["time"] >= begin)
    ending.set()
    thread.join(20)
    kinds = [event["kind"] for event in ledger.events]
    assert kinds == ["job_submitted", "job_started", "resources_allocated"]
    counted = {
        name: sum(each.get(name, 0) for each in ledger.reports)
        for name in ("left_out", "workloads_left_out")
    }
    assert counted == {"left_out": 1, "workloads_left_out": 1}
    assert {name: kind["state"] for name, kind in ledger.reports[-1]["kinds"].items()} == {
        "pods": "followed", "jobs.batch": "followed",
    }  # fmt: skip
    assert server.lease is not None
    assert server.lease["spec"]["holderIdentity"] == ""


def test_the_reported_time_stands_still_while_a_kind_is_away(ending: threading.Event) -> None:
    server, ledger = Server(jobs=[job("a")], pods=[]), Ledger()
    follow(server, ledger, ending)
    wait_until(lambda: bool(ledger.reports))
    server.away.add("pods")
    wait_until(lambda: ledger.reports[-1]["kinds"]["pods"]["state"] == "away")
    first, num_reports = ledger.reports[-1]["time"], len(ledger.reports)
    wait_until(lambda: len(ledger.reports) > num_reports)
    assert ledger.reports[-1]["time"] == first
    server.away.clear()
    wait_until(lambda: ledger.reports[-1]["time"] > first)


def test_of_one_namespace_nothing_else_is_followed(ending: threading.Event) -> None:
    inside, outside = job("inside"), job("outside")
    outside["metadata"]["namespace"] = "elsewhere"
    pods = [pod("p", inside, begin=1), pod("q", outside, begin=1)]
    pods[1]["metadata"]["namespace"] = "elsewhere"
    ledger = Ledger()
    follow(Server(jobs=[inside, outside], pods=pods), ledger, ending, "team-a")
    wait_until(lambda: bool(ledger.reports))
    assert [event["kind"] for event in ledger.events] == [
        "job_submitted", "job_started", "resources_allocated",
    ]  # fmt: skip
    assert {"inside" in event["job_id"] for event in ledger.events} == {True}
