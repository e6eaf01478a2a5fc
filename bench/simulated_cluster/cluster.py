"""Nodes, jobs and faults of the simulated cluster."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Flags = NDArray[np.bool_]

CLUSTER_NAME = "sim"
GPUS = 8
MIN_NODES = 16
EXTRA = 0.4
"""How much longer the straggler's step is, as a share of a healthy one: it pages."""
LATE_PHASE = "backward"
_JOB_SHARES = (0.5, 0.25, 0.125, 0.0625)


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A job on some nodes, one rank a GPU.

    Attributes:
        stages: pipeline stages; consecutive ranks share one.
        step_seconds: duration of a healthy step.
        slow_rank: the rank that becomes a straggler halfway, if any.
        hangs: whether it hangs from halfway on.
        restarts: whether a second attempt begins halfway.
        diverges: whether its loss spikes, grows NaN, and its memory runs out.
        life_seconds: after so long another job takes its nodes, and so on; 0 = it stays.
    """

    job_id: str
    project: str
    queue: str
    job_class: str
    nodes: tuple[str, ...]
    stages: int = 1
    step_seconds: float = 2.0
    slow_rank: int | None = None
    hangs: bool = False
    restarts: bool = False
    diverges: bool = False
    life_seconds: float = 0.0

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.nodes) * GPUS

    def ranks_of(self, node: str) -> range:
        """The ranks that run on a node."""
        first = self.nodes.index(node) * GPUS
        return range(first, first + GPUS)

    def stage_of(self, rank: int) -> str:
        """The pipeline stage of a rank; empty in a job without stages."""
        return str(rank * self.stages // self.world_size) if self.stages > 1 else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """Nodes and jobs, and the times of the scrapes.

    Attributes:
        times: seconds since the epoch of the scrapes, rising.
        sick: the nodes with faults: each sign of trouble of the catalogue is on one of them.
    """

    nodes: tuple[str, ...]
    jobs: tuple[Job, ...]
    times: Values
    scrape_seconds: int
    sick: tuple[str, ...]

    @property
    def halfway(self) -> float:
        """When the faults begin."""
        return float(self.times[len(self.times) // 2])

    @property
    def is_later(self) -> Flags:
        """Which scrapes are after the faults began."""
        return self.times >= self.halfway

    def job_on(self, node: str) -> Job | None:
        """The job that runs on a node; None on a spare."""
        return next((job for job in self.jobs if node in job.nodes), None)


def name_nodes(count: int) -> tuple[str, ...]:
    """Names of nodes, as of the simulated job of as many."""
    return tuple(f"node-{number:04d}" for number in range(1, count + 1))


def slowed_job(num_nodes: int) -> Job:
    """A job on all nodes, of which one rank becomes slow."""
    return Job(job_id="all", project="language", queue="large", job_class="production",
               nodes=name_nodes(num_nodes), slow_rank=num_nodes * 4 + 3)  # fmt: skip


def simulated(
    *, num_nodes: int = MIN_NODES, end: float, range_seconds: int = 1200, scrape_seconds: int = 15
) -> Cluster:
    """A cluster of nodes with 8 GPUs: four jobs, a sixteenth of the nodes spare.

    The times end at ``end``, in whole seconds since the epoch. At least ``MIN_NODES``.
    """
    assert num_nodes >= MIN_NODES, num_nodes
    nodes = name_nodes(num_nodes)
    bounds, begin = [], 0
    for share in _JOB_SHARES:
        bounds.append((begin, begin + int(num_nodes * share)))
        begin = bounds[-1][1]
    placed = [nodes[first:last] for first, last in bounds]
    jobs = (
        Job(job_id="pretrain-70b", project="language", queue="large", job_class="pretraining",
            nodes=placed[0], slow_rank=len(placed[0]) * GPUS // 2 + 3),
        Job(job_id="finetune-13b", project="language", queue="large", job_class="finetuning",
            nodes=placed[1], stages=4, step_seconds=3.0, restarts=True),
        Job(job_id="vision-moe", project="vision", queue="standard", job_class="pretraining",
            nodes=placed[2], step_seconds=0.8, diverges=True),
        Job(job_id="speech-small", project="speech", queue="standard", job_class="research",
            nodes=placed[3], step_seconds=1.5, hangs=True),
    )  # fmt: skip
    count = range_seconds // scrape_seconds + 1
    times = int(end) - np.arange(count, dtype=np.float64)[::-1] * scrape_seconds
    slow_node = placed[0][len(placed[0]) // 2]
    return Cluster(
        nodes=nodes,
        jobs=jobs,
        times=times,
        scrape_seconds=scrape_seconds,
        sick=(slow_node, placed[2][0], nodes[-1]),
    )
