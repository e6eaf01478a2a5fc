"""Perform situations on a lab with real ledgers and feeds, and say what is not right.

Three lanes run side by side, each with a ledger and feeds of its own. One begins with all
situations that share these; the outages of feeds and ledgers go to the lane that is free. What
stops the server or changes its kinds comes after them, one by one.
"""

import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby, repeat
from pathlib import Path

from .cluster import Cluster
from .judge import compare, compare_feed
from .scenario import Situation
from .script import WAYS, perform_rows
from .stage import Stage

AT_ONCE, LANES = 12, 3
SETTLE_SECONDS = 12.0
Findings = dict[str, list[str]]


def perform_together(situations: Sequence[Situation], stage: Stage) -> Findings:
    """Run those that share a lab, several at once."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda each: _perform(each, stage), situations))
    return dict(zip((each.name for each in situations), found, strict=True))


def perform_alone(situation: Situation, stage: Stage) -> Findings:
    """Run one that stops parts, and bring all parts back."""
    try:
        return {situation.name: _perform(situation, stage)}
    finally:
        recover(stage)


def perform_way(situations: Sequence[Situation], stage: Stage) -> Findings:
    """Run all fates of one way to be away in one outage."""
    way = WAYS[situations[0].way]
    begin, cluster = time.monotonic(), Cluster(stage, _namespace(f"way-{situations[0].way}"))
    broken: Findings = {}

    def run(step: str) -> None:
        def run_step(situation: Situation) -> None:
            if situation.name in broken:
                return
            try:
                perform_rows(situation.phases[step], cluster)
            except Exception:  # noqa: BLE001  # a script that fails is a finding of its own
                broken[situation.name] = [traceback.format_exc(limit=-4)]

        with ThreadPoolExecutor(len(situations)) as pool:
            list(pool.map(run_step, situations))

    try:
        run("before")
        perform_rows(way["leave"], cluster)
        run("during")
        perform_rows(way["come_back"], cluster)
        run("after")
        with ThreadPoolExecutor(len(situations)) as pool:
            settled = pool.map(
                lambda each: broken.get(each.name) or _settle(each, cluster), situations
            )
            found = dict(zip((each.name for each in situations), settled, strict=True))
        for name, findings in found.items():
            _print(name, time.monotonic() - begin, findings)
        return found
    finally:
        cluster.close()
        recover(stage)


def recover(stage: Stage) -> None:
    """Start what a script has left stopped."""
    stage.programs["feed-2"].end(signal.SIGKILL)
    stage.offsets.clear()
    for name in ("ledger", "feed"):
        if stage.programs[name].process is None:
            stage.start(name)


def _namespace(name: str) -> str:
    return f"s{time.monotonic_ns() // 10**6 % 10**7}-{name}"[:50].rstrip("-")


def _perform(situation: Situation, stage: Stage) -> list[str]:
    """Run one script; what is not as it says."""
    begin, cluster = time.monotonic(), Cluster(stage, _namespace(situation.name))
    log = stage.programs["feed"].log
    position = log.stat().st_size if log.exists() else 0
    try:
        perform_rows(situation.script, cluster)
        findings = _settle(situation, cluster)
        with log.open("rb") as file:
            file.seek(position)
            findings += compare_feed(situation, file.read().decode(errors="replace"))
    except Exception:  # noqa: BLE001  # a script that fails is a finding of its own
        findings = [traceback.format_exc(limit=-4)]
    finally:
        cluster.close()
    _print(situation.name, time.monotonic() - begin, findings)
    return findings


def _settle(situation: Situation, cluster: Cluster) -> list[str]:
    """What is not right when all has come: what is missing or open is judged after the feed."""
    if situation.absent or any(each.is_open for each in situation.expected):
        cluster.stage.wait_until_delivered()
    deadline = time.monotonic() + SETTLE_SECONDS
    while (findings := compare(situation, cluster)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return findings


def _print(name: str, seconds: float, findings: Iterable[str]) -> None:
    sys.stdout.write(f"{name} {seconds:.0f} s: {'; '.join(findings) or 'right'}\n")
    sys.stdout.flush()


def perform_all(chosen: Sequence[Situation], folder: Path) -> Findings:
    """Run situations on a lab that runs."""
    exclusive = [each for each in chosen if each.exclusive and not each.lab_wide]
    shared = [each for each in chosen if not each.exclusive]
    units = deque(filter(None, [shared, *_divide(exclusive)]))
    last = deque(_divide([each for each in chosen if each.lab_wide]))
    with ThreadPoolExecutor(LANES) as pool:
        names = (f"lane-{number}" for number in range(LANES))
        parts = list(pool.map(_perform_units, names, repeat(units), repeat(folder)))
    parts.append(_perform_units("server", last, folder))
    return {name: findings for part in parts for name, findings in part.items()}


def _divide(situations: Sequence[Situation]) -> list[list[Situation]]:
    """What shares an outage is one unit, and goes first; any other situation is one by itself."""
    ordered = sorted(situations, key=lambda each: each.way, reverse=True)
    return [list(group) for _, group in groupby(ordered, key=lambda each: each.way or each.name)]


def _perform_units(name: str, units: deque[list[Situation]], folder: Path) -> Findings:
    """Run units, as long as there are any, with one ledger and its feeds."""
    if not units:
        return {}
    begin, stage, found = time.monotonic(), Stage(folder, work_name=name), Findings()
    try:
        stage.open()
        while (unit := _take(units)) is not None:
            if unit[0].way:
                found |= perform_way(unit, stage)
            elif unit[0].exclusive:
                found |= perform_alone(unit[0], stage)
            else:
                found |= perform_together(unit, stage)
        return found
    finally:
        stage.close()
        _print(f"{name}, {len(found)} situations", time.monotonic() - begin, ("ended",))


def _take(units: deque[list[Situation]]) -> list[Situation] | None:
    try:
        return units.popleft()
    except IndexError:
        return None
