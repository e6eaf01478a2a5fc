"""Perform situations on a lab with a real ledger and feed, and say what is not right.

cd tests/ledger && python -m kubernetes_situations.perform LAB_FOLDER [NAME_PREFIX]...
"""

import signal
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path

from .actors import FullCluster
from .every_situation import SITUATIONS
from .judge import compare, compare_feed
from .scenario import Situation
from .stage import Stage
from .ways_away import WAYS

AT_ONCE = 6
SETTLE_SECONDS = 12.0
Findings = dict[str, list[str]]


def is_alone(situation: Situation) -> bool:
    """Whether it needs the lab, or the feed's counters, to itself."""
    return situation.exclusive or situation.left_out is not None


def perform_together(situations: Sequence[Situation], stage: Stage) -> Findings:
    """Run those that share a lab, several at once."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda each: _perform(each, stage), situations))
    return dict(zip((each.name for each in situations), found, strict=True))


def perform_alone(situation: Situation, stage: Stage) -> Findings:
    """Run one that stops parts, and bring all parts back."""
    options = stage.options
    try:
        if situation.options:
            stage.options = situation.options
            _restart_feed(stage, stage.options)
        return {situation.name: _perform(situation, stage)}
    finally:
        stage.options = options
        recover(stage, anew=bool(situation.options))


def perform_way(situations: Sequence[Situation], stage: Stage) -> Findings:
    """Run all fates of one way to be away in one outage."""
    way = next(each for each in WAYS if each.word == situations[0].way)
    cluster = FullCluster(stage, _namespace(f"way-{way.word}"))
    broken: Findings = {}

    def run(step: str) -> None:
        def run_step(situation: Situation) -> None:
            if situation.name in broken:
                return
            try:
                assert situation.phases is not None
                getattr(situation.phases, step)(cluster)
            except Exception:  # noqa: BLE001  # a script that fails is a finding of its own
                broken[situation.name] = [traceback.format_exc(limit=-4)]

        with ThreadPoolExecutor(len(situations)) as pool:
            list(pool.map(run_step, situations))

    try:
        run("before")
        way.leave(cluster)
        run("during")
        way.come_back(cluster)
        run("after")
        found = {each.name: broken.get(each.name) or _settle(each, cluster) for each in situations}
        for name, findings in found.items():
            _print(name, 0, findings)
        return found
    finally:
        cluster.close()
        recover(stage)


def recover(stage: Stage, *, anew: bool = False) -> None:
    """Start what a script has left stopped."""
    stage.programs["feed-2"].end(signal.SIGKILL)
    stage.offsets.clear()
    if anew:
        _restart_feed(stage, stage.options)
    for name in ("ledger", "feed"):
        if stage.programs[name].process is None:
            stage.start(name)


def _restart_feed(stage: Stage, options: Sequence[str]) -> None:
    del options
    for name in ("feed", "feed-2"):
        stage.programs[name].end(signal.SIGTERM)


def _namespace(name: str) -> str:
    return f"s{time.monotonic_ns() // 10**6 % 10**7}-{name}"[:50].rstrip("-")


def _perform(situation: Situation, stage: Stage) -> list[str]:
    """Run one script; what is not as it says."""
    begin, cluster = time.monotonic(), FullCluster(stage, _namespace(situation.name))
    log = stage.programs["feed"].log
    position = log.stat().st_size if log.exists() else 0
    try:
        if situation.options:
            words = [
                each.format(second_namespace=cluster.second_namespace) for each in situation.options
            ]
            program = stage.programs["feed"]
            before, program.command = program.command, [*program.command, *words]
            stage.start("feed")
            program.command = before
        left_out = stage.count_left_out() if situation.left_out is not None else 0
        if situation.prepare:
            situation.prepare(cluster)
        situation.script(cluster)
        findings = _settle(situation, cluster)
        if situation.left_out is not None:
            left_out = stage.count_left_out() - left_out
        with log.open("rb") as file:
            file.seek(position)
            findings += compare_feed(situation, file.read().decode(errors="replace"), left_out)
    except Exception:  # noqa: BLE001  # a script that fails is a finding of its own
        findings = [traceback.format_exc(limit=-4)]
    finally:
        cluster.close()
    _print(situation.name, time.monotonic() - begin, findings)
    return findings


def _settle(situation: Situation, cluster: FullCluster) -> list[str]:
    """What is not right when all has come, and stays so."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while (findings := compare(situation, cluster)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return findings


def _print(name: str, seconds: float, findings: Iterable[str]) -> None:
    sys.stdout.write(f"{name} {seconds:.0f} s: {'; '.join(findings) or 'right'}\n")
    sys.stdout.flush()


def perform_all(chosen: Sequence[Situation], stage: Stage) -> Findings:
    """Run situations; those that stop parts come one by one."""
    found = perform_together([each for each in chosen if not is_alone(each)], stage)
    by_itself = [each for each in chosen if is_alone(each)]
    for way, group in groupby(
        sorted(by_itself, key=lambda each: each.way), key=lambda each: each.way
    ):
        if way:
            found |= perform_way(list(group), stage)
        else:
            for each in list(group):
                found |= perform_alone(each, stage)
    return found


def main(folder: str, prefixes: list[str]) -> int:
    """Run the situations that the prefixes name."""
    chosen = [each for each in SITUATIONS if not prefixes or each.name.startswith(tuple(prefixes))]
    stage = Stage(Path(folder).absolute()).open()
    try:
        found = perform_all(chosen, stage)
    finally:
        stage.close()
    wrong = {name: findings for name, findings in found.items() if findings}
    sys.stdout.write(f"{len(found)} situations, {len(wrong)} not right\n")
    for name, findings in wrong.items():
        sys.stdout.write(f"NOT RIGHT {name}: {'; '.join(findings)}\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
