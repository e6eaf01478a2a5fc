"""Performs situations on real Slurms: those that share a lab at once, the others one by one.

``python -m tests.ledger.slurm_situations.rehearse [--folder F] [--json FILE] [PART OF A NAME...]``
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from .agent import REPORT_SECONDS
from .compare import complaints
from .every import EVERY_SITUATION
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


def perform(turn: Turn, situation: Situation) -> str:
    """Runs the script; gives what stopped it."""
    try:
        for action in situation.script:
            action.perform(turn)
    except Exception as error:  # noqa: BLE001  # one situation must not end the others
        return f"{type(error).__name__}: {error}"
    return ""


def rehearse(
    folder: Path, situations: Sequence[Situation], seconds: float, num_labs: int = _LABS
) -> Results:
    """What is wrong with each situation; those for which no time is left are missing.

    Several labs run side by side: one for those that share it, one for each other configuration,
    and the rest take one after the other of those that have a lab to themselves.
    """
    deadline = time.monotonic() + seconds
    parts: list[deque[Situation]] = []
    for conf, cgroup in sorted({(each.conf, each.cgroup) for each in situations}):
        group = [each for each in situations if (each.conf, each.cgroup) == (conf, cgroup)]
        shared = [each for each in group if not _is_alone(each)]
        by_itself = deque(sorted(filter(_is_alone, group), key=_length, reverse=True))
        if conf or cgroup:
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
    return len(situation.script) + 10.0 * _has_pages(situation)


def _rehearse_in_lab(folder: Path, waiting: deque[Situation], deadline: float) -> Results:
    """What is wrong with each situation that is taken from the queue, in a lab of their own."""
    results: Results = {}
    if not waiting or time.monotonic() > deadline:
        return results
    begin = time.monotonic()
    lab = Lab(folder, waiting[0].conf, waiting[0].cgroup)
    try:
        lab.up()
        log("lab", folder.name, f"is up after {time.monotonic() - begin:.0f} s")
        shared = []
        while waiting and not _is_alone(waiting[0]):
            shared.append(waiting.popleft())
        results |= _perform_at_once(lab, shared)
        while waiting and time.monotonic() < deadline:
            results |= _perform_alone(lab, waiting.popleft())
    except (RuntimeError, OSError, IndexError, subprocess.SubprocessError) as error:
        log(folder.name, repr(error))
    finally:
        lab.down()
    return results


def _is_alone(situation: Situation) -> bool:
    """Whether it has the lab to itself: reports too, for a node keeps only twenty ended jobs."""
    commands = [getattr(each, "command", "") for each in situation.expected]
    return situation.exclusive or any("{lockstep} report" in command for command in commands)


def _has_pages(situation: Situation) -> bool:
    return "{train}" in repr(situation.script) or "{script}" in repr(situation.script)


def _perform_at_once(lab: Lab, situations: Sequence[Situation]) -> Results:
    turns = {situation.name: Turn(lab, situation.name) for situation in situations}
    failures: dict[str, str] = {}
    waiting = deque(sorted(situations, key=_length, reverse=True))

    def work() -> None:
        while waiting:
            with suppress(IndexError):
                situation = waiting.popleft()
                failures[situation.name] = perform(turns[situation.name], situation)

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
    failure = perform(turn, situation)
    found = _settle({situation.name: turn}, [situation], {situation.name: failure})
    log(situation.name, f"{time.monotonic() - begin:.0f} s", found[situation.name])
    lab.reset({action.verb for action in situation.script})
    return found


def _settle(
    turns: dict[str, Turn], situations: Sequence[Situation], failures: dict[str, str]
) -> Results:
    """Compares until nothing is wrong, or nothing more is to be heard.

    What has pages is right only once the agent has sent what it reads in them.
    """
    results: Results = {}
    open_ones = list(situations)
    if any(map(_has_pages, open_ones)):
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--shared", action="store_true", help="only those that share a lab")
    parser.add_argument("--exclusive", action="store_true", help="only the others")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--labs", type=int, default=_LABS, help="that run side by side")
    options = parser.parse_args()
    chosen = [
        each
        for each in EVERY_SITUATION
        if (not options.names or any(part in each.name for part in options.names))
        and not (options.shared and (each.exclusive or each.conf or each.cgroup))
        and not (options.exclusive and not each.exclusive)
    ]
    folder = options.folder or Path(tempfile.mkdtemp(prefix="slurm-", dir="/var/tmp"))
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    begin = time.monotonic()
    results = rehearse(folder, chosen, options.seconds, options.labs)
    right = [name for name, found in results.items() if not found]
    seconds = time.monotonic() - begin
    num_missing = len(chosen) - len(results)
    log(f"{len(right)} of {len(results)} are right in {seconds:.0f} s, {num_missing} were not run")
    if options.json:
        earlier = json.loads(options.json.read_text()) if options.json.exists() else {}
        options.json.write_text(json.dumps(earlier | results, indent=1, ensure_ascii=False))
    sys.exit(len(right) < len(results))


if __name__ == "__main__":
    main()
