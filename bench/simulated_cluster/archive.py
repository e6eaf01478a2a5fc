"""What a job of very many ranks costs: its archive, and the report on it.

``make RANKS FOLDER`` writes the archive of a simulated job by the real packer, without the pages in
between; ``report SOURCE [OPTION...]`` prints what the report on it takes; ``named NODES`` prints
whom one names where a rank of all of these nodes is slow, as ``scale`` compares with a page.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np

from lockstep_records.archive.manifest import MANIFEST, AttemptPart, Manifest, Stretch, table_name
from lockstep_records.archive.tables import GROUP_ROWS, make_table, write_table
from lockstep_records.archive.writer import pack_ranks
from lockstep_records.events.event import Event, append_event
from lockstep_records.page.layout import PHASES, ROW, SLOT
from lockstep_records.page.reader import PageHead, PageReader
from lockstep_records.page.writer import PageWriter
from lockstep_reports.arrays import dtype_of
from lockstep_trainer.simulation.spec import Simulation
from lockstep_trainer.simulation.write_pages import list_identities, simulate_steps

from .cluster import EXTRA, LATE_PHASE, Job, slowed_job

STEPS, SHORT_STEPS, RANKS_AT_ONCE, JOB_ID = 1000, 300, 8192, "scale"
FAULT = "slow-backward:node=node-{node:04d},step=400,until=700,delay=250ms"
START_NS = time.monotonic_ns()


def rows_by_rank(simulation: Simulation, first: int, stop: int) -> np.ndarray:
    """Rows of some ranks [ranks, steps]."""
    rows = np.zeros((stop - first, simulation.steps), dtype_of(ROW))
    optional = ("first_arrival_ns", "last_arrival_ns", "loss")
    rows["present"] = sum(ROW.presence[name] for name in optional)
    rows["tokens"] = simulation.tokens
    for column, step in enumerate(simulate_steps(simulation)):
        part = rows[:, column]
        part["number"], part["step"], part["loss"] = column, step.number, step.loss
        part["seconds"], part["phase_seconds"] = step.seconds[first:stop], step.phases[first:stop]
        for name in ("start", "first_arrival", "last_arrival"):
            part[f"{name}_ns"] = START_NS + np.rint(getattr(step, name)[first:stop] * 1e9)
    return rows


def make_heads(simulation: Simulation, folder: Path) -> Iterator[PageHead]:
    """What a page of each rank says beside its rows."""
    for identity in list_identities(simulation, JOB_ID, "local", ""):
        writer = PageWriter(folder / "rank.page", identity, 1, locks=False)
        writer.words[SLOT.word("steps")] = writer.signed[SLOT.word("step")] = simulation.steps
        writer.words[SLOT.word("present")] = SLOT.presence["step"]
        writer.commit(START_NS)
        writer.heartbeat(START_NS, PHASES.index("done"))
        writer.close()
        yield PageReader(writer.path, os.getuid()).read_head()
        writer.path.unlink()


def write_node(
    folder: Path, world_size: int, ranks: range, heads: list[PageHead], rows: np.ndarray
) -> int:
    """Writes the archive of a node, as the agent's child does; returns the bytes of its steps."""
    (folder / "0").mkdir(parents=True)
    groups = [
        make_table(ROW, [(rank, part[at : at + GROUP_ROWS].tobytes())
                         for rank, part in zip(ranks, rows, strict=True)])
        for at in range(0, rows.shape[1], GROUP_ROWS)
    ]  # fmt: skip
    data, count = write_table(groups), rows.shape[1]
    (folder / "0" / table_name("steps", 0)).write_bytes(data)
    stretch = Stretch(table="steps", first_row=0, end_row=count, rows=rows.size,
                      size_bytes=len(data), first_step=1, last_step=count)  # fmt: skip
    nobody = [(None, None)] * len(ranks)
    (folder / "0" / "ranks.parquet").write_bytes(pack_ranks(list(ranks), heads, nobody))
    part = AttemptPart(
        world_size=world_size, ranks=tuple(ranks), stretches=(stretch,), is_complete=True
    )
    manifest = Manifest(job_id=JOB_ID, node=folder.name, attempts={"0": part})
    (folder / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    return len(data)


def make(folder: Path, num_ranks: int, **fields: Any) -> None:
    """Writes the archive of a job, by fields of its simulation, and prints its size."""
    simulation = Simulation(ranks=num_ranks, seed=1, speed="fast", **fields)
    nodes, size, begin = simulation.nodes, 0, time.monotonic()
    with TemporaryDirectory(dir="/dev/shm") as pages:
        heads = make_heads(simulation, Path(pages))
        for first in range(0, num_ranks, RANKS_AT_ONCE):
            stop = min(num_ranks, first + RANKS_AT_ONCE)
            rows = rows_by_rank(simulation, first, stop)
            for rank in range(first, stop, simulation.ranks_per_node):
                ranks = range(rank, rank + simulation.ranks_per_node)
                target = folder / "jobs" / JOB_ID / "nodes" / nodes[rank]
                of_node = rows[rank - first : rank - first + len(ranks)]
                own_heads = [next(heads) for _ in ranks]
                size += write_node(target, num_ranks, ranks, own_heads, of_node)
    for kind in ("job_started", "attempt_started", "attempt_ended", "job_finished"):
        is_end, end = kind.endswith(("ended", "finished")), {"outcome": "succeeded", "exit_code": 0}
        moment = time.time() + simulation.steps * is_end
        event = Event(
            kind=kind, job_id=JOB_ID, attempt=0, fields=end if is_end else {}, time=moment
        )
        append_event(folder / "jobs" / JOB_ID, event)
    count = num_ranks * simulation.steps
    print(f"{size:,} bytes of {count:,} rank-steps, {size / count:.1f} each, "
          f"{time.monotonic() - begin:.0f} s")  # fmt: skip


def report(source: str, *options: str) -> dict[str, Any]:
    """Prints verdict, time and memory of the command, and whose load was beside it."""
    load, begin = os.getloadavg()[0], time.monotonic()
    lockstep = str(Path(sys.executable).with_name("lockstep"))
    command = [lockstep, "report", source, "--html", "/dev/null", "--json", "-", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    seconds, usage = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    document: dict[str, Any] = json.loads(done.stdout)
    verdict = document["verdict"]
    print(f"{verdict['kind']} {verdict['group']} {verdict['confidence']}: {seconds:.1f} s, "
          f"processor {usage.ru_utime + usage.ru_stime:.1f} s, "
          f"{usage.ru_maxrss / 1024:,.0f} MiB, load before {load:.1f}")  # fmt: skip
    return document


def name_slow_rank(job: Job) -> dict[str, str]:
    """Rank, node and phase that a report names from an archive of a job with a slow rank."""
    fault = (
        f"slow-{LATE_PHASE}:rank={job.slow_rank},step={SHORT_STEPS // 2},until={SHORT_STEPS},"
        f"delay={1000 * EXTRA * job.step_seconds:.0f}ms"
    )
    fields = {"steps": SHORT_STEPS, "step_time": job.step_seconds, "fault": (fault,)}
    with TemporaryDirectory() as folder:
        make(Path(folder), job.world_size, **fields)
        document = report(f"{folder}/jobs/{JOB_ID}")
    [rank] = document["verdict"]["ranks"]
    node = next(each["node"] for each in document["ranks"] if each["rank"] == rank)
    return {"rank": str(rank), "node": node, "phase": document["verdict"]["phase"]}


if __name__ == "__main__":
    if sys.argv[1] == "make":
        num_ranks = int(sys.argv[2])
        fault = FAULT.format(node=num_ranks // 21)
        make(Path(sys.argv[3]), num_ranks, steps=STEPS, fault=(fault,))
    elif sys.argv[1] == "named":
        print(name_slow_rank(slowed_job(int(sys.argv[2]))))
    else:
        report(*sys.argv[2:])
