"""Times of all files of a job's log, on one axis."""

from collections.abc import Callable

from lockstep_outcomes.joblogs.reading.prefix import Stamp
from lockstep_outcomes.joblogs.reading.scan import Scan


class LogTimes:
    """Times over all files, on one axis."""

    def __init__(self, files: list[Scan]) -> None:
        self._files = files
        self.first_sign = self.earliest(lambda scan: scan.milestones.init) or self.earliest(
            lambda scan: scan.first_stamp
        )

    def _all(self, pick: Callable[[Scan], Stamp | None]) -> list[float]:
        values = (file.clock.seconds(pick(file)) for file in self._files)
        return [value for value in values if value is not None]

    def earliest(self, pick: Callable[[Scan], Stamp | None]) -> float | None:
        """The earliest over the files."""
        return min(self._all(pick), default=None)

    def latest(self, pick: Callable[[Scan], Stamp | None]) -> float | None:
        """The latest over the files."""
        return max(self._all(pick), default=None)

    def last_progress(self) -> float | None:
        """The latest progress, with what the steps after it took whose lines have no time."""
        ends = [
            seconds + file.milestones.untimed_seconds
            for file in self._files
            if (seconds := file.clock.seconds(file.milestones.progress)) is not None
        ]
        return max(ends, default=None)

    def watched(self) -> tuple[float, float] | None:
        """First and last line since the last progress in which a scheduler calls it running."""
        spans = [
            (file.clock.seconds(first), file.clock.seconds(last))
            for file in self._files
            if file.milestones.watched is not None
            for first, last in (file.milestones.watched,)
        ]
        complete = [(a, b) for a, b in spans if a is not None and b is not None]
        return max(complete, key=lambda span: span[1] - span[0], default=None)

    def training_start(self, main: Scan) -> float | None:
        """The first progress; later where the trainer's summary states a shorter training."""
        start = self.earliest(lambda scan: scan.milestones.start)
        end = main.milestones.end
        stop = main.clock.seconds(end.stop)
        if end.runtime_seconds is None or stop is None:
            return start
        return max(stop - end.runtime_seconds, start or 0.0)

    def run_stop(self) -> float | None:
        """When the run ended by its own log; None when it reported no end, or went on."""
        ends = (file.milestones.end for file in self._files)
        if not any(end.is_known for end in ends):
            return None
        return self.latest(lambda scan: scan.milestones.end.stop)

    def last_step(self) -> int | None:
        """The highest step of any file."""
        steps = (file.milestones.steps.last_number for file in self._files)
        return max((step for step in steps if step is not None), default=None)
