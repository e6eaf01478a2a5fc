"""Eight ranks of some jobs that write a step every 0.2 s, with every kind of collective.

``python bench/node_agent/fake_cluster_ranks.py DIR JOBS``, until it is killed. ``lockstep
simulate`` writes one kind only, and a hybrid of all kinds has six times as many series of them.
"""

import sys
import time
from pathlib import Path

from lockstep_catalogue.labels import KIND, STEP_PHASES
from lockstep_records.files.jobs import page_path
from lockstep_records.page.layout import PHASES, SLOT
from lockstep_records.page.writer import PageWriter, RankIdentity

RANKS = 8
_STEP_SECONDS = 0.2
_STEPS_A_PERIODIC = 5
_BYTES = 1 << 20
_SHARES = dict(zip(STEP_PHASES, (0.1, 0.25, 0.4, 0.1, 0.15), strict=False))


def open_page(folder: Path, number: int, num_jobs: int) -> PageWriter:
    """The page of a rank; the ranks are dealt out to the jobs."""
    job_id, rank = f"bench-{number % num_jobs}", number // num_jobs
    path = page_path(folder, job_id, 0, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    identity = RankIdentity(
        rank=rank,
        attempt=0,
        job_id=job_id,
        world_size=RANKS // num_jobs,
        local_rank=rank,
        cluster="bench",
        project="bench",
        node="node-0001",
        mesh=(("dp", rank),),
        gpu_uuid=f"GPU-00000000-0000-0000-0000-{number:012d}",
    )
    return PageWriter(path, identity, rows=256)


def write_step(page: PageWriter, step: int) -> None:
    """One step of a rank: row, totals, all kinds of collectives; once a second the rest."""
    now_ns = time.monotonic_ns()
    seconds = [_STEP_SECONDS * _SHARES.get(phase, 0.0) for phase in STEP_PHASES]
    for phase, spent in zip(STEP_PHASES, seconds, strict=True):
        page.floats[SLOT.word("phase_seconds") + PHASES.index(phase)] += spent
    page.count_step(step, _STEP_SECONDS, 4096, 1)
    page.append(
        step=step,
        start_ns=now_ns,
        seconds=_STEP_SECONDS,
        phase_seconds=seconds,
        loss=2.5,
        gradient_norm=0.5,
        tokens=4096,
        samples=1,
    )
    for kind in KIND.values:
        page.count_collective(kind, 2, _BYTES, _STEP_SECONDS * 0.01)
    if step % _STEPS_A_PERIODIC == 0:
        for kind in KIND.values:
            page.periodic.count("bus_bytes", kind, _BYTES)
        page.periodic.know("resident_bytes", (1 << 30) + step)
        page.periodic.commit(now_ns)
    page.commit(now_ns)
    page.heartbeat(now_ns, PHASES.index("forward"))


def main() -> None:
    """Writes steps until the process is killed."""
    folder, num_jobs = Path(sys.argv[1]), int(sys.argv[2])
    pages = [open_page(folder, number, num_jobs) for number in range(RANKS)]
    step, due_seconds = 0, time.monotonic()
    while True:
        step += 1
        for page in pages:
            write_step(page, step)
        due_seconds += _STEP_SECONDS
        time.sleep(max(due_seconds - time.monotonic(), 0.0))


if __name__ == "__main__":
    main()
