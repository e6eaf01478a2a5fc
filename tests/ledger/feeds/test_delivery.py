"""What the feed of Kubernetes tells of itself: no more than is in the ledger."""

from collections import Counter
from typing import Any

import pytest
from servers import wait_until

from lockstep_ledger.feeds.kubernetes import delivery
from lockstep_ledger.feeds.kubernetes.delivery import AwayError, Delivery, LedgerClient
from lockstep_ledger.feeds.kubernetes.server import ServerClock


class Ledger(LedgerClient):
    """Answers each delivery by the next of its answers."""

    def __init__(self, *answers: tuple[int, dict[str, Any]] | None) -> None:
        super().__init__("http://nowhere", "east", None, None)
        self.answers, self.reports = list(answers), list[dict[str, Any] | None]()

    def post(
        self, events: list[bytes], sent: float, report: dict[str, Any] | None
    ) -> tuple[int, dict[str, Any]]:
        del events, sent
        self.reports.append(report)
        answer = self.answers.pop(0) if self.answers else (200, {})
        if answer is None:
            raise AwayError("it does not answer")
        return answer


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "_REPORT_SECONDS", 0.1)


def deliver(ledger: Ledger, num_events: int, num_reports: int) -> list[dict[str, Any] | None]:
    def report() -> tuple[float, Counter[str], dict[str, Any]]:
        return 1000.0, Counter(left_out=2), {"source": "kubernetes"}

    sender = Delivery(ledger, ServerClock(), report)
    sender.put([{"id": str(number)} for number in range(num_events)])
    sender.start()
    wait_until(lambda: len(ledger.reports) >= num_reports)
    sender.end(5.0)
    sender.join(5.0)
    return ledger.reports


def test_a_report_has_what_was_counted_and_only_once() -> None:
    refused = (200, {"rejected": [{"id": "0", "reason": "no"}]})
    first, second, *_ = deliver(Ledger(refused), 1, 2)
    assert first is not None
    assert second is not None
    assert (first["time"], first["left_out"], first["waiting"]) == (1000.0, 2, 0)
    assert (second["left_out"], second["refused"]) == (0, 1)


def test_a_report_whose_answer_is_lost_is_told_again() -> None:
    first, second, *_ = deliver(Ledger(None), 1, 2)
    assert first == second


def test_nothing_counts_as_delivered_while_events_wait() -> None:
    first, second, *_ = deliver(Ledger(), 600, 2)
    assert first is None
    assert second is not None
    assert (second["time"], second["waiting"]) == (1000.0, 0)
    assert second["delivered"] == 500
