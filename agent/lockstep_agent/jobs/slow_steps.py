"""The slow steps that the ranks have spooled, for the exemplars of the step histogram."""

from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path

from lockstep_agent.collector import Exemplar
from lockstep_catalogue.training import STEP_SECONDS
from lockstep_records.files.spans import Span, read_spans, spool_path
from lockstep_records.page.reader import Page

MAX_READS = 16
"""Changed spools of one user that are read in one tick."""
_MAX_SECONDS = 1e9
_Signature = tuple[int, int]
"""Time of the last change and size of a file."""
_Spool = tuple[_Signature, dict[int, Span]]


class SlowSteps:
    """The newest slow step of each bucket, over the ranks of a job on this node.

    A spool is read again only when it has changed; of each the newest step a bucket is remembered.

    Attributes:
        num_read: spools that the last call has read.
    """

    def __init__(self) -> None:
        self._spools: dict[Path, _Spool] = {}
        self.num_read = 0

    def exemplars(
        self, pages: Iterable[Page], max_reads: int = MAX_READS
    ) -> tuple[Exemplar | None, ...]:
        """One exemplar or None a bucket, the last beyond all bounds; other spools wait."""
        self.num_read = 0
        newest: list[Exemplar | None] = [None] * (len(STEP_SECONDS.buckets) + 1)
        spools, self._spools = self._spools, {}
        for page in pages:
            path = spool_path(page.path)
            spool = self._refresh(path, spools.get(path), max_reads)
            if spool is None:
                continue
            self._spools[path] = spool
            for bucket, span in spool[1].items():
                before = newest[bucket]
                if before is None or before.wall_seconds < span.end_ns / 1e9:
                    newest[bucket] = _exemplar(span, page.identity["rank"])
        return tuple(newest)

    def _refresh(self, path: Path, spool: _Spool | None, max_reads: int) -> _Spool | None:
        try:
            status = path.lstat()
        except OSError:
            return None
        signature = (status.st_mtime_ns, status.st_size)
        # A spool holds up to 256 KiB, so it is read again only when it has changed.
        if (spool and spool[0] == signature) or self.num_read >= max_reads:
            return spool
        self.num_read += 1
        by_bucket: dict[int, Span] = {}
        for span in read_spans(path):
            if span.name == "slow_step" and _is_timed(span):
                bucket = bisect_left(STEP_SECONDS.buckets, span.attributes["seconds"])
                if bucket not in by_bucket or by_bucket[bucket].end_ns < span.end_ns:
                    by_bucket[bucket] = span
        return signature, by_bucket


def _is_timed(span: Span) -> bool:
    """Whether the step's duration is known; a user's own program may write anything."""
    return bool(0 < span.attributes.get("seconds", 0.0) <= _MAX_SECONDS)


def _exemplar(span: Span, rank: int) -> Exemplar:
    labels = {"trace_id": span.trace_id, "span_id": span.span_id, "rank": str(rank)}
    return Exemplar(labels=labels, value=span.attributes["seconds"], wall_seconds=span.end_ns / 1e9)
