"""Writes a made run as the pages that its ranks would leave."""

import time
from collections.abc import Collection
from pathlib import Path

import numpy as np

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_records.files.jobs import page_path
from lockstep_records.page.layout import EXTRAS, PHASES, SLOT
from lockstep_records.page.writer import PageWriter, RankIdentity

from .made_run import MadeRun, Spent

_COLLECTED_SECONDS = "collection_seconds"


def write_pages(
    run: MadeRun,
    root: Path,
    *,
    job_id: str = "made",
    attempt: int = 0,
    begin_ns: int | None = None,
    skip: Collection[int] = (),
) -> Path:
    """One page a rank under ``root``, on a tmpfs; without a begin the run has just ended."""
    spent = run.spent()
    if begin_ns is None:
        # Pages hold monotonic times, which the time since the machine's start bounds.
        begin_ns = max(0, time.monotonic_ns() - int((spent.run_seconds + 60) * 1e9))
    for rank in (rank for rank in range(run.ranks) if rank not in skip):
        identity = RankIdentity(
            job_id=job_id,
            rank=rank,
            local_rank=rank,
            world_size=run.ranks,
            attempt=attempt,
            node=f"node-{rank * run.nodes // run.ranks}",
            mesh=(("pp", rank),) if run.kind == "stages" else (),
        )
        _write_rank(run, spent, identity, root, begin_ns)
    return root / "jobs" / job_id


def _write_rank(
    run: MadeRun, spent: Spent, identity: RankIdentity, root: Path, begin_ns: int
) -> None:
    rank = identity.rank
    path = page_path(root, identity.job_id, identity.attempt, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    page = PageWriter(path, identity, rows=run.steps + 1)
    count = min(run.steps, run.ended_after.get(rank, run.steps))
    shortest = min([run.steps, *run.ended_after.values()])
    # The others enter the next step, in which they wait for the rank that has finished.
    is_done = count == shortest
    count = count if is_done else shortest
    _write_rows(page, spent, rank, count, begin_ns, is_bare=run.is_bare)
    end_ns = begin_ns + int(float((spent.start + spent.seconds)[rank, count - 1]) * 1e9)
    end_ns = end_ns if end_ns >= 0 else time.monotonic_ns()  # a run of before the machine's start
    page.signed[SLOT.word("step")] = count - 1
    page.words[SLOT.word("present")] |= SLOT.presence["step"]
    if not run.is_bare:
        _write_totals(page, run, spent, rank, count)
    page.heartbeat(end_ns, PHASES.index("done" if is_done else "sync"))
    page.periodic.commit(end_ns)
    page.commit(end_ns)
    page.close()


def _write_rows(
    page: PageWriter, spent: Spent, rank: int, count: int, begin_ns: int, *, is_bare: bool
) -> None:
    start, arrival = spent.start[rank], spent.arrival[rank]
    phases = np.stack([spent.phases[name][rank] for name in STEP_PHASES], axis=1).tolist()
    extras = {} if is_bare else _extras(spent, rank)
    halves = (spent.phases["backward"][rank] / 2).tolist()
    for step in range(count):
        for name, values in extras.items():
            page.add_to_row(name, values[step])
        last_ns = None if np.isnan(arrival[step]) else begin_ns + int(arrival[step] * 1e9)
        page.append(
            step=step,
            start_ns=begin_ns + int(start[step] * 1e9),
            seconds=sum(phases[step]),
            phase_seconds=phases[step],
            first_arrival_ns=None if last_ns is None else last_ns - int(halves[step] * 1e9),
            last_arrival_ns=last_ns,
            loss=2.5,
            tokens=64,
            samples=8,
        )


def _extras(spent: Spent, rank: int) -> dict[str, list[float]]:
    states = {name: values[rank] for name, values in spent.states.items()}
    own = spent.seconds[rank] - spent.phases["sync"][rank]
    extras = {
        "run_queue_seconds": states["queued"],
        "core_seconds": np.maximum(own - states["queued"] - states["idle"] - states["stopped"], 0),
        "stopped_seconds": states["stopped"],
        # Where the format has them by row.
        _COLLECTED_SECONDS: states["collector"],
    }
    return {name: values.tolist() for name, values in extras.items() if name in EXTRAS}


def _write_totals(page: PageWriter, run: MadeRun, spent: Spent, rank: int, count: int) -> None:
    totals = page.periodic
    collected = spent.states["collector"][rank, :count]
    totals.count("collections", number=int(np.count_nonzero(collected)))
    totals.add(_COLLECTED_SECONDS, float(collected.sum()))
    totals.know("run_queue_seconds", float(spent.states["queued"][rank, :count].sum()))
    rounds = {"rounds": count // run.round_steps, "server": count}.get(run.kind)
    if rounds is not None:
        totals.know("sync_rounds", rounds)
        totals.know("independent_rounds", rounds if run.kind == "server" else 0)
        totals.know("staleness_steps", run.ranks - 1)
        totals.know("staleness_sum", rounds * (run.ranks - 1))
