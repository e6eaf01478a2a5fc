"""The spans of a rank as a part of its monitor, which may fail and go off by itself."""

import math
from collections.abc import Mapping

from lockstep.guard import Parts
from lockstep.telemetry.traces import Traces
from lockstep_records.page.writer import PageWriter


class GuardedTraces:
    """Takes what ``Traces`` takes; while spans are off no step is slow."""

    def __init__(self, page: PageWriter, environment: Mapping[str, str], parts: Parts) -> None:
        self._parts = parts
        self._traces = parts.run("spans", Traces, page, environment)

    def limit_seconds(self, now_ns: int) -> float:
        """Duration above which a step is judged; infinite where none is."""
        if self._traces is None:
            return math.inf
        limit = self._parts.run("spans", self._traces.limit_seconds, now_ns)
        return math.inf if limit is None else limit

    def phase_ended(self, phase: str, began_ns: int, ended_ns: int, *, failed: bool) -> None:
        """Writes the span of a block."""
        if self._traces is not None:
            write = self._traces.phase_ended
            self._parts.run("spans", write, phase, began_ns, ended_ns, failed=failed)

    def step_ended(self, now_ns: int, step: int, seconds: float) -> None:
        """Judges a step that took longer than the limit."""
        if self._traces is not None:
            self._parts.run("spans", self._traces.step_ended, now_ns, step, seconds)

    def close(self) -> None:
        """Writes what is left and closes the file."""
        if self._traces is not None:
            self._parts.run("spans", self._traces.close)
