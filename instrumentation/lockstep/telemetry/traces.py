"""Spans of a rank: rare events, and steps that are slow against the rank's own median.

Not every step has a span: a step costs one comparison, and only slow ones are written, a
bounded number a minute. The launcher exports what is spooled here.
"""

import math
import os
import statistics
import time
from collections.abc import Mapping
from types import MappingProxyType

from lockstep.recorder.phases import INIT
from lockstep.telemetry.logs import last_step
from lockstep_records.files.spans import Span, SpanSpool, spool_path, trace_of
from lockstep_records.page.layout import RING_OFFSET, ROW, SLOT
from lockstep_records.page.reader import unpack
from lockstep_records.page.writer import PageWriter

PHASE_SPANS = {"checkpoint": "checkpoint", "restore": "restore", "eval": "evaluation"}
_INIT_SECONDS = SLOT.word("phase_seconds") + INIT
_ROWS = SLOT.word("steps")
_MEDIAN_STEPS = 63  # odd, so that the median is a step's own duration
_WARM_UP_STEPS = 16  # none of them is slow: the first ones compile and allocate
_MINUTE_NS = 60_000_000_000


class Traces:
    """Spools the spans of one rank.

    Args:
        page: of the rank, just created; its ring has the durations of the last steps.
        environment: TRACEPARENT and SLURM_RESTART_COUNT, as ``trace_of`` reads them.
        slow_ratio: a step is slow above this multiple of the rank's running median.
        slow_seconds: and at least that much above it; checkpoints and evaluations do not count.
        slow_per_minute: maximum of slow steps written in a minute, the second half of them only
            when they are the slowest of the minute.
    """

    def __init__(
        self,
        page: PageWriter,
        environment: Mapping[str, str] = os.environ,
        *,
        slow_ratio: float = 1.5,
        slow_seconds: float = 0.001,
        slow_per_minute: int = 12,
    ) -> None:
        self._page, self._spool = page, SpanSpool(spool_path(page.path))
        self._trace = trace_of(page.identity.job_id, environment)
        self._created_ns = time.monotonic_ns()
        # One offset for the whole run: a clock that is set meanwhile moves no span against another.
        self._wall_offset_ns = time.time_ns() - self._created_ns
        self._span_path = (page.identity.attempt, page.identity.rank)
        self._slow_ratio, self._slow_seconds = slow_ratio, slow_seconds
        self._slow_per_minute = slow_per_minute
        self._number = self._rows_seen = self._slow_in_minute = 0
        self._minute_began_ns = 0
        self._slowest_seconds = 0.0
        self._median_seconds: float | None = None
        self._is_initialised = False
        self._limit_seconds = 0.0

    def limit_seconds(self, now_ns: int) -> float:
        """Duration above which a step is judged; infinite once the minute's maximum is written."""
        if now_ns - self._minute_began_ns >= _MINUTE_NS:
            self._minute_began_ns, self._slow_in_minute, self._slowest_seconds = now_ns, 0, 0.0
        if self._slow_in_minute >= self._slow_per_minute:
            return math.inf
        if self._slow_in_minute >= self._slow_per_minute // 2:
            return max(self._limit_seconds, self._slowest_seconds)
        return self._limit_seconds

    def phase_ended(self, phase: str, began_ns: int, ended_ns: int, *, failed: bool) -> None:
        """Writes the span of a block; monotonic nanoseconds. Only some phases have spans."""
        self._write_initialisation(began_ns)
        name = PHASE_SPANS.get(phase)
        if name is not None:
            self._write(name, began_ns, ended_ns, self._last_step(), failed=failed)

    def step_ended(self, now_ns: int, step: int, seconds: float) -> None:
        """Judges a step that took longer than the limit; updates the median when it is due."""
        if not self._is_initialised:
            self._write_initialisation(self._first_phase_ns())
        rows = self._page.words[_ROWS]
        limit = self.limit_seconds(now_ns)
        if self._median_seconds is not None and seconds > limit:
            phases = self._last_phases()
            paused = phases.get("checkpoint", 0.0) + phases.get("eval", 0.0)
            if seconds - paused > limit:
                self._write_slow_step(now_ns, step, seconds, phases)
        if self._median_seconds is None or rows - self._rows_seen >= _MEDIAN_STEPS:
            self._update_median(rows)

    def _update_median(self, rows: int) -> None:
        """Computes the running median from the last rows of the ring."""
        durations = self._durations() if rows >= _WARM_UP_STEPS else []
        if durations:
            self._rows_seen = rows
            self._median_seconds = median = statistics.median(durations)
            self._limit_seconds = max(median * self._slow_ratio, median + self._slow_seconds)

    def _durations(self) -> list[float]:
        """Seconds of the last steps in the ring."""
        words = memoryview(self._last_rows(_MEDIAN_STEPS)).cast("f")
        return list(words[ROW.offsets["seconds"] // 4 :: ROW.size // 4])

    def _last_phases(self) -> Mapping[str, float]:
        data = self._last_rows(1)
        return unpack(ROW, data)["phase_seconds"] if data else {}

    def _last_rows(self, count: int) -> bytes:
        """Bytes of the last ``count`` rows; about as many where the ring starts over."""
        steps, ring = self._page.words[_ROWS], self._page.rows
        end = (steps - 1) % ring + 1
        if end < count and steps > ring:
            end = ring  # the rows before the ring starts over, not the few after it
        first = max(0, end - min(count, steps))
        return self._page.file[RING_OFFSET + first * ROW.size : RING_OFFSET + end * ROW.size]

    def _write_slow_step(
        self, now_ns: int, step: int, seconds: float, phases: Mapping[str, float]
    ) -> None:
        self._slow_in_minute += 1
        self._slowest_seconds = max(seconds, self._slowest_seconds)
        attributes = {
            f"{phase}_seconds": round(value, 6) for phase, value in phases.items() if value
        }
        attributes |= {"step": step, "seconds": seconds}
        if self._median_seconds is not None:
            attributes["median_seconds"] = self._median_seconds
        self._write("slow_step", now_ns - int(seconds * 1e9), now_ns, attributes)

    def _last_step(self) -> dict[str, int]:
        step = last_step(self._page)
        return {} if step is None else {"step": step}

    def _first_phase_ns(self) -> int:
        return self._created_ns + int(self._page.floats[_INIT_SECONDS] * 1e9)

    def _write_initialisation(self, ended_ns: int) -> None:
        """Once: from the creation of the page to the first phase."""
        if not self._is_initialised:
            self._is_initialised = True
            self._write("initialisation", self._created_ns, ended_ns)

    def _write(
        self,
        name: str,
        began_ns: int,
        ended_ns: int,
        attributes: Mapping[str, float] = MappingProxyType({}),
        *,
        failed: bool = False,
    ) -> None:
        number, self._number = self._number, self._number + 1
        wall = self._wall_offset_ns
        self._spool.write(
            Span(
                name=name,
                number=number,
                trace_id=self._trace.trace_id,
                span_id=self._trace.span_id(*self._span_path, number),
                parent_id=self._trace.span_id(*self._span_path),
                start_ns=began_ns + wall,
                end_ns=ended_ns + wall,
                failed=failed,
                attributes=dict(attributes),
            )
        )

    def close(self) -> None:
        """Writes what is left and closes the file."""
        self._write_initialisation(self._first_phase_ns())
        self._spool.close()
