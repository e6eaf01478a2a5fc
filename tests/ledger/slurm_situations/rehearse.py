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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .compare import complaints
from .every import EVERY_SITUATION
from .lab import Lab
from .scenario import Situation
from .turn import Turn

# The agent tells the end of a job without a launcher a minute after its last process.
_SETTLE_SECONDS, _SETTLE_WITHOUT_PAGES_SECONDS = 90.0, 25.0
_AT_ONCE = 12
_LABS = 4
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

    Several labs run side by side: one for those that share it, some for those that have a lab to
    themselves, and one for each other configuration.
    """
    deadline = time.monotonic() + seconds
    parts: list[list[Situation]] = []
    for conf, cgroup in sorted({(each.conf, each.cgroup) for each in situations}):
        group = [each for each in situations if (each.conf, each.cgroup) == (conf, cgroup)]
        by_itself = [each for each in group if _is_alone(each)]
        shared = [each for each in group if not _is_alone(each)]
        num_parts = 1 if conf or cgroup else max(1, num_labs - 1)
        parts += [shared, *(by_itself[first::num_parts] for first in range(num_parts))]
    parts = sorted(filter(None, parts), key=len, reverse=True)
    results: Results = {}
    with ThreadPoolExecutor(num_labs) as pool:
        folders = (folder / str(number) for number in range(len(parts)))
        deadlines = [deadline] * len(parts)
        for found in pool.map(_rehearse_in_lab, folders, parts, deadlines):
            results |= found
    return results


def _rehearse_in_lab(folder: Path, situations: Sequence[Situation], deadline: float) -> Results:
    """What is wrong with each situation, in a lab of their configuration."""
    results: Results = {}
    if time.monotonic() > deadline:
        return results
    lab = Lab(folder, situations[0].conf, situations[0].cgroup)
    try:
        lab.up()
        results |= _rehearse(lab, situations, deadline)
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        log(folder.name, error)
        results |= {each.name: [f"its lab: {error}"] for each in situations} | results
    finally:
        lab.down()
    return results


def _rehearse(lab: Lab, situations: Sequence[Situation], deadline: float) -> Results:
    results: Results = {}
    shared = [each for each in situations if not _is_alone(each)]
    if shared:
        results |= _perform_at_once(lab, shared)
    for situation in situations:
        if not _is_alone(situation):
            continue
        if time.monotonic() > deadline:
            break
        begin = time.monotonic()
        results[situation.name] = _perform_alone(lab, situation)
        log(situation.name, f"{time.monotonic() - begin:.0f} s", results[situation.name])
    return results


def _is_alone(situation: Situation) -> bool:
    """Whether it has the lab to itself: reports too, for a node keeps only twenty ended jobs."""
    commands = [getattr(each, "command", "") for each in situation.expected]
    return situation.exclusive or any("{lockstep} report" in command for command in commands)


def _perform_at_once(lab: Lab, situations: Sequence[Situation]) -> Results:
    turns = {situation.name: Turn(lab, situation.name) for situation in situations}
    failures: dict[str, str] = {}
    waiting = list(situations)
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if not waiting:
                    return
                situation = waiting.pop(0)
            failures[situation.name] = perform(turns[situation.name], situation)

    threads = [threading.Thread(target=work) for _ in range(_AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results = _settle(turns, situations, failures)
    for name, found in results.items():
        log(name, found)
    return results


def _perform_alone(lab: Lab, situation: Situation) -> list[str]:
    turn = Turn(lab, situation.name)
    failure = perform(turn, situation)
    found = _settle({situation.name: turn}, [situation], {situation.name: failure})
    lab.reset()
    return found[situation.name]


def _settle(
    turns: dict[str, Turn], situations: Sequence[Situation], failures: dict[str, str]
) -> Results:
    """Compares until nothing is wrong, or nothing more is to be heard.

    What is expected to be wrong has a complaint where it is right.
    """
    results: Results = {}
    open_ones = list(situations)
    has_pages = any("{train}" in repr(s.script) or "{script}" in repr(s.script) for s in open_ones)
    patience = _SETTLE_SECONDS if has_pages else _SETTLE_WITHOUT_PAGES_SECONDS
    deadline = time.monotonic() + patience
    is_first = True
    while open_ones:
        if open_ones and not is_first:
            time.sleep(3.0)
        is_first = False
        for situation in [*open_ones]:
            try:
                found = complaints(turns[situation.name], situation)
            except Exception as error:  # noqa: BLE001  # the ledger may be on its way
                found = [f"{type(error).__name__}: {error}"]
            failure = failures.get(situation.name)
            results[situation.name] = ([failure] if failure else []) + found
            if not found or failure:
                open_ones.remove(situation)
        if time.monotonic() > deadline:
            break
    for situation in situations:
        if situation.wrong_because:
            is_wrong = bool(results[situation.name])
            log(situation.name, "expected to be wrong:", results[situation.name])
            right = f"it is right, though {situation.wrong_because}: take that reason away"
            results[situation.name] = [] if is_wrong else [right]
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
