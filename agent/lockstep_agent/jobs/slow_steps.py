"""The slow steps that the ranks have spooled, for the exemplars of the step histogram."""

from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path

from lockstep_agent.collector import Exemplar
from lockstep_catalogue.training import STEP_SECONDS
from lockstep_records.page.reader import Page
from lockstep_records.spans import Span, read_spans, spool_path

_Signature = tuple[int, int]
"""Time of the last change and size of a file."""


class SlowSteps:
    """The newest slow step of each bucket, over the ranks of a job on this node.

    A spool is read again only when it has changed.
    """

    def __init__(self) -> None:
        self._spans: dict[Path, tuple[_Signature, list[Span]]] = {}

    def exemplars(self, pages: Iterable[Page]) -> tuple[Exemplar | None, ...]:
        """One exemplar or None a bucket; the last bucket is beyond all bounds."""
        newest: list[Exemplar | None] = [None] * (len(STEP_SECONDS.buckets) + 1)
        for page in pages:
            for span in self._slow_spans(spool_path(page.path)):
                seconds = span.attributes["seconds"]
                bucket = bisect_left(STEP_SECONDS.buckets, seconds)
                before = newest[bucket]
                if before is None or before.wall_seconds < span.end_ns / 1e9:
                    newest[bucket] = _exemplar(span, page.identity["rank"], seconds)
        return tuple(newest)

    def _slow_spans(self, path: Path) -> list[Span]:
        try:
            status = path.stat()
        except OSError:
            return []
        signature = (status.st_mtime_ns, status.st_size)
        # A spool holds up to 256 KiB, so it is read again only when it has changed.
        if path not in self._spans or self._spans[path][0] != signature:
            slow = [s for s in read_spans(path) if s.name == "slow_step" and _is_timed(s)]
            self._spans[path] = (signature, slow)
        return self._spans[path][1]


def _is_timed(span: Span) -> bool:
    """Whether the step's duration is known; a user's own program may write anything."""
    return 0 < span.attributes.get("seconds", 0.0) < float("inf")


def _exemplar(span: Span, rank: int, seconds: float) -> Exemplar:
    labels = {"trace_id": span.trace_id, "span_id": span.span_id, "rank": str(rank)}
    return Exemplar(labels=labels, value=seconds, wall_seconds=span.end_ns / 1e9)
