"""How far a log's local times are ahead of UTC: by moments that both clocks name, never by a vote.

Null assumption: the lines of a log come in the order of time. A line that is printed late breaks
it and only ever names too early a time, so that the latest time of a few lines is used for all.
"""

from dataclasses import dataclass, field
from itertools import pairwise

from lockstep_outcomes.joblogs.reading.prefix import Stamp

# Offsets of time zones are multiples of a quarter of an hour, from -12:00 to +14:00.
_QUARTER_SECONDS, _HOUR_SECONDS = 900, 3600
_LEAST_SECONDS, _MOST_SECONDS = -43_200, 50_400
# Clocks of whole seconds, and a pipe between the two writers.
_SLACK_SECONDS = 3.0
_FEW_LINES = 8  # after a change of clocks; one of them at least was not printed late
_MOST_BOUNDS = 4096


@dataclass(slots=True)
class _Run:
    """Lines in a row that name the same kind of time.

    Attributes:
        latest: before it or in it, over all lines so far.
        first_latest: the latest of its first few lines.
    """

    zoned: bool
    latest: float
    first_latest: float
    num_lines: int = 1
    starts_by_marker: bool = False
    ends_by_marker: bool = False


@dataclass(frozen=True, slots=True)
class _Bound:
    """The offset is at least ``seconds``, or at most that."""

    seconds: float
    is_lower: bool
    by_marker: bool
    is_thin: bool


@dataclass(slots=True)
class ZoneEstimate:
    """Takes the times of one log in its order, and gives the offset of the local ones."""

    _latest: dict[bool, float] = field(default_factory=dict)
    _runs: list[_Run] = field(default_factory=list)
    _exact: list[float] = field(default_factory=list)

    def add(self, stamp: Stamp) -> None:
        """Adds the next time of the log."""
        if stamp.pair_seconds is not None and len(self._exact) < _MOST_BOUNDS:
            self._exact.append(stamp.pair_seconds - stamp.seconds)
        latest = max(stamp.seconds, self._latest.get(stamp.zoned, stamp.seconds))
        self._latest[stamp.zoned] = latest
        run = self._runs[-1] if self._runs else None
        if run is not None and run.zoned == stamp.zoned:
            run.latest, run.ends_by_marker = latest, stamp.is_marker
            run.num_lines += 1
            if run.num_lines <= _FEW_LINES:
                run.first_latest = max(run.first_latest, stamp.seconds)
        elif len(self._runs) < _MOST_BOUNDS:
            self._runs.append(
                _Run(stamp.zoned, latest, stamp.seconds, 1, stamp.is_marker, stamp.is_marker)
            )

    def ahead_seconds(self) -> float | None:
        """Seconds by which local times are ahead of UTC; None where nothing shows it.

        Evidence in this order, the next only where there is none of the former: both clocks in one
        line; lines of scripts and managers that stand at a start or an end; the order of all lines.
        """
        if self._exact:
            typical = sorted(self._exact)[len(self._exact) // 2]
            return float(round(typical / _QUARTER_SECONDS) * _QUARTER_SECONDS)
        bounds = [_bound(before, after) for before, after in pairwise(self._runs)]
        thick = [bound for bound in bounds if not bound.is_thin]
        for chosen in ([b for b in bounds if b.by_marker], thick, bounds):
            if chosen:
                offset = _offset_within(chosen)
                if offset is not None:
                    return offset
        return None


def _bound(before: _Run, after: _Run) -> _Bound:
    """What the change of clocks from one run of lines to the next says about the offset."""
    local, zoned = (
        (after.first_latest, before.latest) if before.zoned else (before.latest, after.first_latest)
    )
    by_marker = after.starts_by_marker if before.zoned else before.ends_by_marker
    # One line between two of the other clock may be a late one.
    is_thin = min(before.num_lines, after.num_lines) == 1
    return _Bound(local - zoned, not before.zoned, by_marker, is_thin)


def _offset_within(bounds: list[_Bound]) -> float | None:
    """The offset within all bounds; whole hours before quarters, and as little idle as possible."""
    lowers = [bound.seconds for bound in bounds if bound.is_lower]
    uppers = [bound.seconds for bound in bounds if not bound.is_lower]
    low = max(lowers, default=float(_LEAST_SECONDS)) - _SLACK_SECONDS
    high = min(uppers, default=float(_MOST_SECONDS)) + _SLACK_SECONDS
    for unit in (_HOUR_SECONDS, _QUARTER_SECONDS):
        fitting = [
            offset
            for offset in range(_LEAST_SECONDS, _MOST_SECONDS + 1, unit)
            if low <= offset <= high
        ]
        if fitting:
            # Between the bounds nothing happened in the log, so the least of it is the likeliest.
            return float(fitting[-1] if uppers else fitting[0])
    return None
