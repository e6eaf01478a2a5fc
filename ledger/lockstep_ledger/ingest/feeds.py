"""What feeds of schedulers tell of themselves with each delivery: how far they are."""

from dataclasses import dataclass, field
from typing import Any

from lockstep_catalogue import ledger

_MAX_CLUSTERS = 100
_MAX_ROWS = 1e9


@dataclass(frozen=True, slots=True)
class FeedReport:
    """One poll of a feed: until when it has asked, what it read and could not read."""

    time_seconds: float
    source: str
    rows: float
    left_out: float


def read_report(document: dict[str, Any], now_seconds: float) -> FeedReport | None:
    """The report in a delivery's frame; None without one, and for one that makes no sense."""
    report = document.get("feed")
    if not isinstance(report, dict) or report.get("source") not in ledger.FEED.values:
        return None
    numbers = [report.get(name) for name in ("time", "rows", "left_out")]
    if not all(isinstance(n, int | float) and 0 <= n < 1e12 for n in numbers):  # noqa: PLR2004  # a bound for a time too
        return None
    time_seconds, rows, left_out = (float(number or 0.0) for number in numbers)
    return FeedReport(
        min(time_seconds, now_seconds), report["source"], min(rows, _MAX_ROWS), left_out
    )


@dataclass(slots=True)
class Feeds:
    """The newest report of each cluster's feeds, and what they have read since the start."""

    _newest: dict[tuple[str, str], FeedReport] = field(default_factory=dict)

    def take(self, cluster: str, report: FeedReport | None) -> None:
        """Adds a report; of clusters that nobody has counted yet the first hundred."""
        if report is None:
            return
        key = (cluster, report.source)
        before = self._newest.get(key)
        if before is None and len(self._newest) >= _MAX_CLUSTERS:
            return
        rows, left_out = (before.rows, before.left_out) if before else (0.0, 0.0)
        self._newest[key] = FeedReport(
            report.time_seconds, report.source, rows + report.rows, left_out + report.left_out
        )

    def samples(self) -> dict[tuple[str, tuple[str, ...]], float]:
        """The series of a scrape."""
        return {
            (metric.name, key): value
            for key, newest in self._newest.items()
            for metric, value in (
                (ledger.FEED_ASKED, newest.time_seconds),
                (ledger.FEED_ROWS, newest.rows),
                (ledger.FEED_LEFT_OUT, newest.left_out),
            )
        }
