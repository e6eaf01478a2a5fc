"""Runs that the driver plays, and what is true of each; as a program it plays all."""

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from click.testing import CliRunner

from lockstep_outcomes.progress.hangs import Hang, HangTimeouts, find_hang
from lockstep_outcomes.progress.missing import rank_words
from lockstep_records.files.jobs import list_attempts, list_pages
from lockstep_records.nccl.launches import read_launches
from lockstep_records.page.reader import Page, PageError, read_page
from lockstep_reports.command import report

from .ranks import ddp, moe, run_ranks, start_ranks

STEPS, HANG_STEP, HANG_SECONDS, REPLAY_SECONDS = 200, 100, 2.0, 8.0
_PATIENCE_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class Run:
    """What is played, and what is true of it.

    Attributes:
        settings: of the driver.
        ranks: who was late, the worst first, or who did not come; empty for nobody.
        kind: ``pace`` is judged by a report at the end, the others by the agent's rule meanwhile.
            A ``replay`` goes on unseen in captured graphs: no hang, and no verdict.
    """

    settings: Mapping[str, object]
    ranks: tuple[int, ...] = ()
    kind: Literal["pace", "hang", "replay"] = "pace"


class Answer(NamedTuple):
    """The verdict, whether it is true, and whom a rule by the longest duration names."""

    verdict: str
    is_right: bool
    longest: str = ""


INTERFACES: dict[str, dict[str, object]] = {
    **{f"v{version}": {"version": version} for version in range(3, 8)},
    "RCCL v6": {"version": 6, "rccl": 1, "channels": 256, "nodes": 2},
}
FAULTS: dict[str, Run] = {
    "healthy": Run({}),
    "late": Run({"late": "5:40:200:20000"}, (5,)),
    "two late": Run({"late": "2:40:200:24000,7:40:200:16000"}, (2, 7)),
    "slow link": Run({"slow_from": 40, "slow_until": STEPS, "slow_us": 15000}),
    "one does not come": Run({"hang_rank": 6, "hang_step": HANG_STEP, "hang_op": 2}, (6,), "hang"),
}
ALONE: dict[str, Run] = {
    "two late in turn, v6": Run({"late": "2:20:110:30000,7:130:200:20000"}, (2, 7)),
    "late device, v6": Run({"late_device": "4:40:200:8000"}, (4,)),
    "loaded again, late, v6": Run({"reload": 100, "late": "1:110:200:20000"}, (1,)),
    "children after the stop, late, v6": Run({"after_stop": 0, "late": "3:40:200:20000"}, (3,)),
    "forked worker, late, v6": Run({"fork_step": 90, "late": "3:40:200:20000"}, (3,)),
    "64 communicators, v6": Run({"plan": ddp(8, layers=64, comms=64), "steps": 160}),
    "64 communicators, late, v6": Run(
        {"plan": ddp(8, layers=64, comms=64), "steps": 160, "late": "6:30:160:80000"}, (6,)
    ),
    "moe, v6": Run({"plan": moe(8)}),
    "moe, late, v6": Run({"plan": moe(8), "late": "4:40:200:24000"}, (4,)),
    "moe, late, v7": Run({"plan": moe(8), "late": "4:40:200:24000", "version": 7}, (4,)),
    "all come, v5": Run({"version": 5, "hang_all_step": HANG_STEP}, (), "hang"),
    "all come, v7": Run({"version": 7, "hang_all_step": HANG_STEP}, (), "hang"),
    "another function, v6": Run({"odd_rank": 4, "odd_step": HANG_STEP, "odd_op": 1}, (4,), "hang"),
    "a stopped process, v3": Run(
        {"version": 3, "stop_rank": 7, "stop_step": HANG_STEP}, (7,), "hang"
    ),
    "hosts run ahead, v6": Run(
        {"ahead": 5, "hang_rank": 2, "hang_step": HANG_STEP, "hang_op": 3}, (2,), "hang"
    ),
    "killed in a call, v6": Run({"crash_at": 0}, (2,), "hang"),
    "aborted in its own work, v4": Run({"crash_at": 1, "version": 4}, (2,), "hang"),
    "segmentation fault of the proxy, v6": Run({"crash_at": 2}, (2,), "hang"),
    **{f"graphs, v{n}": Run({"version": n, "graph": 100}, (), "replay") for n in (3, 4, 6, 7)},
}
RUNS = {
    f"{name}, {version}": Run({**played, **run.settings}, run.ranks, run.kind)
    for version, played in INTERFACES.items()
    for name, run in FAULTS.items()
} | ALONE


def play(root: Path, run: Run) -> Answer:
    """Plays a run in an empty folder on a tmpfs."""
    settings: dict[str, object] = {"steps": STEPS, "plan": ddp(8, step_us=20_000), **run.settings}
    if "crash_at" in settings:
        settings |= {"crash_rank": 2, "crash_step": HANG_STEP, "grace_ms": 60_000}
    if run.kind == "pace":
        return _judge_pace(root, run, settings)
    wait = REPLAY_SECONDS if run.kind == "replay" else _PATIENCE_SECONDS
    if run.kind == "replay":
        settings["steps"] = 10 * STEPS
    with start_ranks(root, **settings):  # type: ignore[arg-type]  # by name
        hang = _wait_for_hang(root, wait)
    if hang is None:
        return Answer("no hang", run.kind == "replay")
    missing = hang.missing.ranks
    is_right = run.kind == "hang" and missing == run.ranks
    return Answer(f"hang, {rank_words(missing) if missing else 'all came'}", is_right)


def _wait_for_hang(root: Path, seconds: float) -> Hang | None:
    timeouts = HangTimeouts(step_seconds=HANG_SECONDS, pause_seconds=1000.0)
    hang, deadline = None, time.monotonic() + _PATIENCE_SECONDS
    while hang is None and time.monotonic() < deadline:
        time.sleep(0.3)
        if pages := _pages(root):
            deadline = min(deadline, time.monotonic() + seconds)
            hang = find_hang(pages, time.monotonic_ns(), timeouts)
    return hang


def _judge_pace(root: Path, run: Run, settings: dict[str, object]) -> Answer:
    job, errors = run_ranks(root, **settings)  # type: ignore[arg-type]  # by name
    out = root / "report.json"
    result = CliRunner().invoke(report, [str(job), "--json", str(out)], standalone_mode=False)
    assert (errors, result.exception) == ("", None), errors + result.output
    verdict = json.loads(out.read_text(encoding="utf-8"))["verdict"]
    named = tuple(verdict["ranks"])
    # Of two that are late at once the others wait for one: who is named is one of them.
    is_right = named[:1] == run.ranks[:1] and {*named} <= {*run.ranks}
    is_right &= verdict["kind"] in ({"rank"} if run.ranks else {"nobody", "workload", "rare"})
    words = rank_words(named) if named else "nobody"
    words += "" if is_right else f" ({verdict['kind']}: {verdict['evidence'][0]})"
    longest = _longest(root)
    return Answer(words, is_right, "" if longest is None else f"rank {longest}")


def _longest(root: Path) -> int | None:
    """Whose collectives take longest, so that its bandwidth is the lowest; None unknown."""
    means: list[float] = []
    for page in _pages(root):
        ends = [each for each in read_launches(page.path).collectives if each["kernels_ended"]]
        durations = [each["end_ns"] - each["begin_ns"] for each in ends]
        means.append(float(np.mean(durations)) if durations else np.nan)
    return None if np.isnan(means).any() else int(np.argmax(means))


def _pages(root: Path) -> list[Page]:
    attempts = list_attempts(root / "jobs" / "job") if (root / "jobs" / "job").is_dir() else []
    try:
        return [read_page(path) for path in list_pages(attempts[-1])] if attempts else []
    except PageError:  # it is being made
        return []


@contextmanager
def empty_root() -> Iterator[Path]:
    """An empty folder on a tmpfs, which is removed with what ranks have left in it."""
    folder = Path(tempfile.mkdtemp(prefix="nccl-", dir="/dev/shm"))  # its own folder
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def main() -> int:
    """Plays the runs whose names hold one of the words; the number that were judged wrong."""
    names = [name for name in RUNS if not sys.argv[1:] or any(w in name for w in sys.argv[1:])]
    sys.stdout.write("| run | true | verdict | right | longest collectives |\n")
    sys.stdout.write("| --- | --- | --- | --- | --- |\n")
    num_wrong = 0
    for name in names:
        run = RUNS[name]
        with empty_root() as root:
            answer = play(root, run)
        num_wrong += not answer.is_right
        truth = rank_words(run.ranks) if run.ranks else "nobody"
        right = "yes" if answer.is_right else "NO"
        row = (name, truth, answer.verdict, right, answer.longest)
        sys.stdout.write(f"| {' | '.join(row)} |\n")
        sys.stdout.flush()
    sys.stdout.write(f"\n{len(names) - num_wrong} of {len(names)} right.\n")
    return num_wrong


if __name__ == "__main__":
    sys.exit(main())
