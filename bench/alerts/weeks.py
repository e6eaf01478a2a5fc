"""Months of a cluster of 64 nodes, 24 jobs and notebooks: false pages, and planted faults that page.

All ordinary events of a month, and more faults than a month has so that their share can be measured,
are drawn by a seed, by the rates below. They fall on windows of four hours, of eight of the jobs each;
quiet hours are sampled by one window a month without an event. A window is judged as the second set
of situations is: the rules are evaluated by a real Prometheus over all of it.

Simplified: an event meets only the others of its window, scrapes and evaluations are a minute apart,
and Alertmanager's groups and silences are computed.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from alerts.situations.expand import Paging, shipped
from alerts.situations_second.judge import (
    NOT_PROGRESSING,
    Case,
    Expectation,
    Verdict,
    firing_of,
    heard,
    judged,
)
from alerts.situations_second.world import World

LOSING, AT_RISK, CLUSTER, BLIND = "JobLosing", "WorkAtRisk", "ClusterLosing", "Blind"
HOURS, WINDOWS = 5.0, 18
PAIRS, SINGLES = "ABCD", "EFGH"  # jobs of two nodes, and of one
JOBS = PAIRS + SINGLES
ENDED_WELL_RATIO = 0.6
STEPS, CHECKPOINTS = (1, 1, 1, 2, 5, 30), (900, 1800, 1800, 3600)
Event = Callable[[World, str, float, random.Random], object]

# Events a month of 64 nodes of 8 GPUs. Restarts that heal: Llama 3 had 419 in 54 days on 16,384 GPUs, which is 7
# here; failures of users: Acme, 40 % of jobs; preemptions: Bamboo; slow minutes: Greyhound; flaps, optics, memory and
# heat: the causes of Llama 3's table and of Imbue's repairs, of which most cost no step. The rest is taken from
# what is usual on clusters of this size; nobody has published it.
ORDINARY: dict[str, tuple[int, Event]] = {
    "evaluation": (40, lambda w, j, at, c: w.pause(j, "eval", at, at + c.randint(3, 28))),
    "requeue that heals": (8, lambda w, j, at, c: w.requeue(j, at, at + c.randint(2, 8))),
    "preemption": (10, lambda w, j, at, c: w.requeue(j, at, at + c.randint(5, 90))),
    "a job ends or is cancelled": (25, lambda w, j, at, c: w.away(j, at, ended=c.random() < ENDED_WELL_RATIO)),
    "start-up": (8, lambda w, j, at, c: w.away(j, 0, at).pause(j, "init", at, at + c.randint(2, 14))),
    "compilation": (6, lambda w, j, at, c: w.pause(j, "init", at, at + c.randint(2, 6))),
    "checkpoint that blocks": (6, lambda w, j, at, c: w.pause(j, "checkpoint", at, at + c.randint(1, 4))),
    "checkpoint that fails once": (4, lambda w, j, at, c: w.no_checkpoints(j, at, at + w.jobs[j]["checkpoint"] / 60, "failed")),
    "slow minutes": (6, lambda w, j, at, c: w.straggler(j, at, at + c.randint(2, 5))),
    "longer sequences": (3, lambda w, j, at, c: w.slow(j, c.uniform(1.1, 1.3), at, phase="forward")),
    "NaN of one step": (5, lambda w, j, at, c: w.counts("nonfinite_steps_total", j, "+8 every 60s", at, at + 1)),
    "loss scaling": (3, lambda w, j, at, c: w.counts("nonfinite_steps_total", j, "+1 every 180s", at)),
    "spike of the loss": (4, lambda w, j, at, c: w.counts('loss_anomalous_ranks{anomaly="spike"', j, "8", at, at + 4)),
    "largest batch sought": (3, lambda w, j, at, c: w.pause(j, "init", at, at + 9).counts("out_of_memory_total", j, "+1 every 60s", at, at + 8)),
    "flapping port": (8, lambda w, j, at, c: w.port(w.jobs[j]["nodes"][0], "flapping", at, at + 1, verdict="degraded")),
    "dead optic routed around": (2, lambda w, j, at, c: w.port(w.jobs[j]["nodes"][-1], "down", at)),
    "memory waits for a reset": (3, lambda w, j, at, c: w.gpu(w.jobs[j]["nodes"][0], "remap_pending", at)),
    "hot node, no loss": (3, lambda w, j, at, c: w.throttled(w.jobs[j]["nodes"][0], "sw_thermal", at)),
    "application's Xid": (5, lambda w, j, at, c: w.xid(w.jobs[j]["nodes"][0], 31, "error", at, kind="application")),
    "idle node reboots": (4, lambda w, j, at, c: w.lost(w.nodes()[-1], at, at + c.randint(4, 14))),
    "idle node is taken": (3, lambda w, j, at, c: w.event("node leaves", at, node=w.nodes()[-2])),
    "one scrape fails": (30, lambda w, j, at, c: w.event("scrape fails", at, at + 1, node=c.choice(w.nodes()))),
    "an agent is replaced": (12, lambda w, j, at, c: w.event("agents restart", at, at + 1, node=c.choice(w.nodes()))),
    "filer slow for minutes": (4, lambda w, j, at, c: w.filer(0.4, at, at + c.randint(1, 4))),
    "ledger restarts": (2, lambda w, j, at, c: w.event("ledger is away", at, at + c.randint(1, 4))),
    "Prometheus restarts": (1, lambda w, j, at, c: w.event("Prometheus is away", at, at + c.randint(1, 5))),
    "kube-state-metrics restarts": (2, lambda w, j, at, c: w.event("kube-state-metrics is away", at, at + c.randint(1, 8))),
}  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """A loss that is planted: what happens, and who hears of it within how many minutes."""

    number: int
    event: Event
    kinds: tuple[str, ...]
    within: float
    is_of_all: bool = False


FAULTS: dict[str, Fault] = {
    "hang": Fault(6, lambda w, j, at, c: w.hang(j, at), (NOT_PROGRESSING,), 25),
    "hang under a standing cause": Fault(3, lambda w, j, at, c: c.choice((w.throttled(w.jobs[j]["nodes"][0], "sw_thermal", 5), w.gpu(w.jobs[j]["nodes"][0], "nvlink_slow", 5))).hang(j, at), (NOT_PROGRESSING,), 25),
    "node lost": Fault(4, lambda w, j, at, c: w.lost(w.jobs[j]["nodes"][0], at).stands(j, at), (NOT_PROGRESSING,), 30),
    "never starts": Fault(1, lambda w, j, at, c: w.away(j, 0, at).pause(j, "init", at), (NOT_PROGRESSING,), 100),
    "evaluation without end": Fault(1, lambda w, j, at, c: w.pause(j, "eval", at), (NOT_PROGRESSING,), 100),
    "restarts without progress": Fault(2, lambda w, j, at, c: w.restarts(j, at, at + 240, c.choice((8, 15))), (NOT_PROGRESSING,), 120),
    "straggler": Fault(4, lambda w, j, at, c: w.straggler(j, at, rank=str(c.randrange(8)), factor=c.uniform(1.5, 2)), (LOSING,), 60),
    "checkpoints fail": Fault(2, lambda w, j, at, c: w.no_checkpoints(j, 20, outcome="failed"), (AT_RISK,), 230),
    "slow filer": Fault(1, lambda w, j, at, c: w.filer(0.4, at).slow_all(1.6, at, phase="data"), (CLUSTER,), 60, is_of_all=True),
    "chiller": Fault(1, lambda w, j, at, c: w.throttled("|".join(w.nodes()[:8]), "hw_thermal", at).slow_all(1.5, at, phase="backward"), (CLUSTER,), 60, is_of_all=True),
    "agents down": Fault(1, lambda w, j, at, c: w.event("scrape fails", at), (BLIND,), 45, is_of_all=True),
}  # fmt: skip


@dataclass
class Month:
    """What a month made of it."""

    false_pages: list[str] = field(default_factory=list)
    unmet: list[str] = field(default_factory=list)
    faults: int = 0


def windows(seed: int) -> list[Case]:
    """The windows of a month: a quiet one, one a fault of all, and those with all the rest."""
    chance = random.Random(seed)
    faults = [name for name, fault in FAULTS.items() for _ in range(fault.number)]
    events = [name for name, (number, _) in ORDINARY.items() for _ in range(number)]
    of_all = [name for name in faults if FAULTS[name].is_of_all]
    of_jobs = [name for name in faults if not FAULTS[name].is_of_all]
    chance.shuffle(events)
    found = [Case("quiet", _world(chance), HOURS)]
    for name in of_all:
        world, at = _world(chance), chance.randint(60, 150)
        FAULTS[name].event(world, JOBS[0], at, chance)
        found.append(Case(name, world, HOURS, (_expected(name, "", at),), is_ordinary=False))
    for number in range(WINDOWS):
        mine = of_jobs[number::WINDOWS]
        found.append(_window(f"{seed}-{number}", mine, events[number::WINDOWS], chance))
    return found


def _world(chance: random.Random) -> World:
    jobs = {
        name: {
            "count": 2 if name in PAIRS else 1,
            "step": chance.choice(STEPS),
            "checkpoint": chance.choice(CHECKPOINTS),
        }
        for name in JOBS
    }
    return World(jobs, idle=3).notebook("n13", 2)


def _window(name: str, faults: list[str], events: list[str], chance: random.Random) -> Case:
    """Faults have jobs of their own, of two nodes; ordinary events fall on the others."""
    world = _world(chance)
    hit = chance.sample(PAIRS, len(faults))
    expectations = []
    for job_id, fault in zip(hit, faults, strict=True):
        at = 20 if fault == "checkpoints fail" else chance.randint(60, 160)
        FAULTS[fault].event(world, job_id, at, chance)
        expectations.append(_expected(fault, job_id, at))
    free = [job_id for job_id in JOBS if job_id not in hit]
    busy: set[str] = set()
    for event in events:
        open_jobs = [job_id for job_id in free if job_id not in busy] or free[-1:]
        job_id = chance.choice(open_jobs)
        busy.add(job_id)
        ORDINARY[event][1](world, job_id, chance.randint(40, 200), chance)
    return Case(
        f"{name}: {', '.join([*faults, *events])}",
        world,
        HOURS,
        expectations,
        is_ordinary=not expectations,
    )


def _expected(fault: str, job_id: str, at: float) -> Expectation:
    # Work at risk counts from the last checkpoint, which is older than the fault.
    about = {"job_id": job_id} if job_id else {}
    return Expectation(FAULTS[fault].kinds, about, at, FAULTS[fault].within)


def evaluate(case: Case, paging: Paging) -> Verdict:
    """What was wrong in a window."""
    runs = heard(case, firing_of(case, paging), paging)
    return judged(case, runs)


def add(case: Case, verdict: Verdict, month: Month) -> None:
    """Add a window to the month."""
    month.faults += len(case.expectations)
    month.false_pages += [f"{run} [{case.name}]" for run in verdict.false_pages]
    twice = {run.labels.get("job_id", "") for run in verdict.false_pages}
    for expected in case.expectations:
        texts = [text for each, text in verdict.unmet if each is expected]
        if not texts and expected.about.get("job_id", "none") in twice:
            texts = [f"{expected.kinds} {expected.about} comes more than once"]
        month.unmet += [f"{text} [{case.name}]" for text in texts]


def main() -> None:
    """Prints a row a month, and what was wrong in it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--months", type=int, default=1)
    options = parser.parse_args()
    print("| seed | false pages | faults told once, rightly and in time | seconds |")
    print("| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(os.cpu_count()) as processes:
        paging = shipped(60, Path(folder))
        for seed in range(options.seed, options.seed + options.months):
            begin, month = time.monotonic(), Month()
            cases = windows(seed)
            for case, verdict in zip(
                cases, processes.map(evaluate, cases, repeat(paging)), strict=True
            ):
                add(case, verdict, month)
            right = month.faults - len(month.unmet)
            took = time.monotonic() - begin
            print(f"| {seed} | {len(month.false_pages)} | {right} of {month.faults} | {took:.0f} |")
            for text in (*month.false_pages, *month.unmet):
                print(f"<!-- {text} -->", flush=True)


if __name__ == "__main__":
    main()
