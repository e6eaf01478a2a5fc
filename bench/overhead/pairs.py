"""Timing in pairs: the same loop bare and watched, in turn, as the machine's speed drifts."""

import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import TypeAlias

Loop: TypeAlias = Callable[[], None]
Pair: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Median:
    """A median and its 95 % interval, by order statistics."""

    value: float
    low: float
    high: float


def median_of(values: Sequence[float]) -> Median:
    """The median; with fewer than six values the interval is their whole range."""
    ranked, n = sorted(values), len(values)
    reach = round(0.98 * n**0.5)  # normal approximation of the binomial: 1.96 x sqrt(n) / 2
    low, high = max(0, n // 2 - reach), min(n - 1, n // 2 + reach)
    return Median(statistics.median(ranked), ranked[low], ranked[high])


def microseconds(loop: Loop, num_steps: int) -> float:
    """Microseconds a step of a loop."""
    begin = time.perf_counter_ns()
    for _ in range(num_steps):
        loop()
    return (time.perf_counter_ns() - begin) / num_steps / 1e3


def alternate_bare_and_watched(
    step: Loop, hook: Callable[[bool], None], *, pairs: int
) -> dict[str, list[Pair]]:
    """(bare, watched) of one loop that is watched in turn, a step each, in microseconds.

    Before each timed step there is another of its kind; the turns come in all orders. Returns
    "wall", and "busy" for the processor time of the thread, without what it waits; and the same of
    steps that are both bare: "twin wall", "twin busy". What is due once a second while the loop is
    bare is done in the step before a timed one, so it counts as often as in a run.
    """
    pairs_by_kind: dict[str, list[Pair]] = {
        "wall": [],
        "busy": [],
        "twin wall": [],
        "twin busy": [],
    }
    orders = [*permutations((("bare", False), ("twin", False), ("watched", True)))]
    for number in range(pairs):
        took = {}
        for name, on in orders[number % len(orders)]:
            hook(on)
            step()
            began, busy = time.perf_counter_ns(), time.thread_time_ns()
            step()
            busy, ended = time.thread_time_ns() - busy, time.perf_counter_ns()
            took[name] = (ended - began) / 1e3, busy / 1e3
        for other, prefix in (("watched", ""), ("twin", "twin ")):
            for index, kind in enumerate(("wall", "busy")):
                pairs_by_kind[prefix + kind].append((took["bare"][index], took[other][index]))
    return pairs_by_kind


def run_pairs(
    bare: Loop, watched: Loop, *, pairs: int, num_steps: int, pause_seconds: float = 0.0
) -> list[Pair]:
    """(bare, watched) in microseconds a step, the first pair thrown away; which goes first changes.

    Between pairs it rests ``pause_seconds``, for tools whose queue is emptied by a thread.
    """
    rows = []
    for number in range(pairs + 1):
        order = (bare, watched) if number % 2 else (watched, bare)
        took = {loop: microseconds(loop, num_steps) for loop in order}
        rows.append((took[bare], took[watched]))
        time.sleep(pause_seconds)
    return rows[1:]


def page_root() -> Path:
    """Folder of this process's pages, on a tmpfs; ``overhead.py`` creates and removes it."""
    return Path(os.environ["BENCH_ROOT"])


def pairs_a_round() -> int:
    """Pairs that this process is to measure."""
    return int(os.environ["BENCH_ROUND_PAIRS"])


def write_pairs(pairs: dict[str, list[Pair]]) -> None:
    """Hands the pairs of this process, by loop, to ``overhead.py``."""
    Path(os.environ["BENCH_PAIRS"]).write_text(json.dumps(pairs), encoding="utf-8")
