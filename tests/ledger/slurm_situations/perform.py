"""Performs situations on real Slurms: those that share a lab at once, the others one by one."""

import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from .agent import REPORT_SECONDS
from .compare import complaints
from .lab import Lab
from .scenario import Situation
from .turn import Turn

_SETTLE_SECONDS = 60.0
_AT_ONCE = 16
_LABS = 6
Results = dict[str, list[str]]


def log(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def perform_all(
    folder: Path, situations: Sequence[Situation], seconds: float, num_labs: int = _LABS
) -> Results:
    """What is wrong with each situation; those for which no time is left are missing.

    Several labs run side by side: one for those that share it, one for each other configuration,
    and the rest take one after the other of those that have a lab to themselves.
    """
    deadline = time.monotonic() + seconds
    parts: list[deque[Situation]] = []
    for conf in sorted({each.conf for each in situations}):
        group = [each for each in situations if each.conf == conf]
        shared = [each for each in group if not each.is_alone]
        by_itself = deque(
            sorted((each for each in group if each.is_alone), key=_length, reverse=True)
        )
        if conf:
            parts.append(deque([*shared, *by_itself]))
        else:
            parts = [deque(shared), *[by_itself] * max(1, num_labs // 2)]
    # The first ones begin at once.
    parts = [*parts[:2], *parts[num_labs // 2 + 1 :], *parts[2 : num_labs // 2 + 1]]
    results: Results = {}
    with ThreadPoolExecutor(num_labs) as pool:
        folders = (folder / str(number) for number in range(len(parts)))
        for found in pool.map(_rehearse_in_lab, folders, parts, [deadline] * len(parts)):
            results |= found
    return results


def _length(situation: Situation) -> float:
    """What is long begins first."""
    return len(situation.script) + 10.0 * situation.has_pages


def _rehearse_in_lab(folder: Path, waiting: deque[Situation], deadline: float) -> Results:
    """What is wrong with each situation that is taken from the queue, in a lab of their own."""
    results: Results = {}
    if not waiting or time.monotonic() > deadline:
        return results
    begin = time.monotonic()
    lab = Lab(folder, waiting[0].conf)
    try:
        lab.up()
        log("lab", folder.name, f"is up after {time.monotonic() - begin:.0f} s")
        shared = []
        while waiting and not waiting[0].is_alone:
            shared.append(waiting.popleft())
        results |= _perform_at_once(lab, shared)
        while waiting and time.monotonic() < deadline:
            results |= _perform_alone(lab, waiting.popleft())
    except (RuntimeError, OSError, IndexError, subprocess.SubprocessError) as error:
        log(folder.name, repr(error))
    finally:
        lab.down()
    return results


def _perform_at_once(lab: Lab, situations: Sequence[Situation]) -> Results:
    turns = {situation.name: Turn(lab, situation.name) for situation in situations}
    failures: dict[str, str] = {}
    waiting = deque(sorted(situations, key=_length, reverse=True))

    def work() -> None:
        while waiting:
            with suppress(IndexError):
                situation = waiting.popleft()
                failures[situation.name] = turns[situation.name].perform(situation)

    begin = time.monotonic()
    threads = [threading.Thread(target=work) for _ in range(_AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log(len(situations), f"that share a lab have run for {time.monotonic() - begin:.0f} s")
    results = _settle(turns, situations, failures)
    for name, found in results.items():
        log(name, found)
    return results


def _perform_alone(lab: Lab, situation: Situation) -> Results:
    begin = time.monotonic()
    turn = Turn(lab, situation.name)
    failure = turn.perform(situation)
    found = _settle({situation.name: turn}, [situation], {situation.name: failure})
    log(situation.name, f"{time.monotonic() - begin:.0f} s", found[situation.name])
    lab.reset(situation.verbs)
    return found


def _settle(
    turns: dict[str, Turn], situations: Sequence[Situation], failures: dict[str, str]
) -> Results:
    """Compares until nothing is wrong, or nothing more is to be heard."""
    results: Results = {}
    open_ones = list(situations)
    if any(each.has_pages for each in open_ones):
        time.sleep(REPORT_SECONDS)
    deadline = time.monotonic() + _SETTLE_SECONDS
    while open_ones and (not results or time.monotonic() < deadline):
        if results:
            time.sleep(2.0)
        for situation in [*open_ones]:
            try:
                found = complaints(turns[situation.name], situation)
            except Exception as error:  # noqa: BLE001  # the ledger may be on its way
                found = [f"{type(error).__name__}: {error}"]
            failure = failures.get(situation.name)
            results[situation.name] = ([failure] if failure else []) + found
            if not found or failure:
                open_ones.remove(situation)
    return results
