"""Timing in pairs: the same loop bare and watched, in turn, for the machine's speed drifts."""

import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

Loop: TypeAlias = Callable[[], None]
Clock: TypeAlias = Callable[[], int]
Pair: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Median:
    """A median and the 95 % interval of it, by order statistics."""

    value: float
    low: float
    high: float


def median_of(values: Sequence[float]) -> Median:
    """The median; with fewer than six values the interval is their whole range."""
    ranked, n = sorted(values), len(values)
    reach = round(0.98 * n**0.5)  # normal approximation of the binomial: 1.96 x sqrt(n) / 2
    low, high = max(0, n // 2 - reach), min(n - 1, n // 2 + reach)
    return Median(statistics.median(ranked), ranked[low], ranked[high])


def microseconds(loop: Loop, num_steps: int, clock: Clock = time.perf_counter_ns) -> float:
    """Microseconds a step."""
    begin = clock()
    for _ in range(num_steps):
        loop()
    return (clock() - begin) / num_steps / 1e3


def in_pairs(
    bare: Loop,
    watched: Loop,
    *,
    pairs: int,
    num_steps: int,
    pause_seconds: float = 0.0,
    clock: Clock = time.perf_counter_ns,
) -> list[Pair]:
    """(bare, watched) in microseconds a step, the first pair thrown away; which goes first changes.

    Between pairs it rests ``pause_seconds``, for tools whose queue is emptied by a thread. The
    processor time of the thread (``time.thread_time_ns``) leaves out what it waits.
    """
    rows = []
    for number in range(pairs + 1):
        order = (bare, watched) if number % 2 else (watched, bare)
        took = {loop: microseconds(loop, num_steps, clock) for loop in order}
        rows.append((took[bare], took[watched]))
        time.sleep(pause_seconds)
    return rows[1:]


def tell(figures: dict[str, list[Pair]]) -> None:
    """Gives the pairs of this process to whoever started it."""
    Path(os.environ["BENCH_PAIRS"]).write_text(json.dumps(figures), encoding="utf-8")
