"""Timelines of situations: ``0-10m: 100 +1 every 1s; then held`` becomes one value a scrape."""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
NUMBER = r"[+-]?(?:\d+\.?\d*(?:e[+-]?\d+)?|Inf)|NaN"
DURATION = re.compile(r"(\d+\.?\d*(?:e[+-]?\d+)?)\s*(scrapes?|ms|s|m|h|d)")
RANGE = re.compile(r"(?P<start>\d[^:-]*)-(?P<end>[^:-]*):")
GROWS = re.compile(rf"(?P<start>{NUMBER})?\s*\+(?P<amount>[\d.e+-]+) every (?P<period>.+)")
CLOCK = re.compile(r"now(?: floor (?P<floor>[^+-]+))?(?:\s*(?P<sign>[+-])\s*(?P<offset>.+))?")
AGAIN = re.compile(rf"(?P<start>{NUMBER}) again")
COUNTER = re.compile(r"_(total|sum|count|bucket|step)$")


def seconds(text: str, scrape: float) -> float:
    """Seconds of a sum of durations such as ``10m+4 scrapes``; a bare 0 is the beginning."""
    total = 0.0
    for part in str(text).split("+"):
        found = DURATION.fullmatch(part.strip())
        if part.strip() == "0":
            continue
        if not found:
            raise ValueError(
                f"time {text!r}: {part!r} is no duration such as 90s, 10m or 4 scrapes"
            )
        unit = found[2]
        total += float(found[1]) * (scrape if unit.startswith("scrape") else UNITS[unit])
    return total


@dataclass(frozen=True)
class Segment:
    """What a series does from one time to another."""

    start: float
    end: float
    action: str


def segments(timeline: str, scrape: float, end: float) -> list[Segment]:
    """The segments of a timeline; a value without a range holds for always."""
    found: list[Segment] = []
    previous_end = 0.0
    for part in str(timeline).split(";"):
        text = part.strip()
        match = RANGE.match(text)
        if match:
            start = seconds(match["start"], scrape)
            until = seconds(match["end"], scrape) if match["end"].strip() else np.inf
            action = text[match.end() :].strip()
        else:
            start, until, action = previous_end, np.inf, text.removeprefix("then ").strip()
        found.append(Segment(start, min(until, end + 2 * scrape), action))
        previous_end = until
    return found


class Course:
    """The values of one series at its scrapes; actions are applied one over another."""

    def __init__(self, name: str, times: Numbers, scrape: float) -> None:
        self._times, self._scrape = times, scrape
        self._returns = not COUNTER.search(name)  # a gauge has its own value again after a segment
        self._fixed = np.full(len(times), np.nan)  # values that no history changes
        self._is_fixed = np.zeros(len(times), dtype=bool)
        self._gpu_count = np.zeros(len(times), dtype=bool)
        self._growth = np.zeros(len(times))
        self._starts: dict[int, float] = {}
        self._hidden = np.zeros(len(times), dtype=np.int8)  # 1 absent, 2 a gap

    def apply(self, segment: Segment, *, base: bool = False) -> None:  # noqa: C901 # by action
        """Let the series do what the segment says while it lasts."""
        during = (self._times >= segment.start - 1e-9) & (self._times < segment.end - 1e-9)
        if not during.any():
            return
        first, action = int(np.argmax(during)), segment.action
        if action in {"absent", "gap"}:
            self._hidden[during] = np.maximum(self._hidden[during], 2 if action == "gap" else 1)
            return
        if match := AGAIN.fullmatch(action):
            self._starts[first] = float(match["start"])
            return
        self._is_fixed[during], self._gpu_count[during] = False, False
        for index in [index for index in self._starts if during[index]]:
            del self._starts[index]
        self._growth[during] = 0.0
        if action == "held":
            self._gpu_count[during] = True
        elif match := CLOCK.fullmatch(action):
            self._fixed[during], self._is_fixed[during] = self._clock(match)[during], True
        elif match := GROWS.fullmatch(action):
            self._grow(match, during, first)
        elif re.fullmatch(NUMBER, action):
            if self._returns:
                self._fixed[during], self._is_fixed[during] = float(action), True
            if base or not self._returns:
                self._starts[first] = float(action)
        else:
            raise ValueError(f"timeline {action!r} is no value, growth, clock, held, absent or gap")

    def _clock(self, match: re.Match[str]) -> Numbers:
        times = self._times
        if match["floor"]:
            period = seconds(match["floor"].strip(), self._scrape)
            times = np.floor(times / period + 1e-9) * period
        offset = seconds(match["offset"], self._scrape) if match["offset"] else 0.0
        return times - offset if match["sign"] == "-" else times + offset

    def _grow(self, match: re.Match[str], during: NDArray[np.bool_], first: int) -> None:
        period = seconds(match["period"].strip(), self._scrape)
        steps = np.floor(self._times / period + 1e-9)
        growth = np.diff(steps, prepend=steps[0]) * float(match["amount"])
        self._growth[during] = growth[during]
        if match["start"]:
            self._starts[first] = float(match["start"])
            self._growth[first] = 0.0

    def arrays(self) -> tuple[Numbers, NDArray[np.int8]]:
        """The level at each scrape, and what hides it: 0 nothing, 1 absence, 2 a gap."""
        level = np.cumsum(self._growth)
        for index, start in sorted(self._starts.items()):
            level[index:] += start - level[index]
        level = np.where(self._is_fixed, self._fixed, level)
        if self._is_fixed.any():
            for index in np.flatnonzero(self._gpu_count & (np.arange(len(level)) > 0)).tolist():
                level[index] = level[index - 1]
        return level, self._hidden
