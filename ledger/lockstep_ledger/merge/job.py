"""The record of one job while its events come in; it is saved as JSON with the job's row."""

from dataclasses import dataclass, field
from typing import Literal

import msgspec

Status = Literal["pending", "running", "ended", "finished"]
"""``ended``: all nodes have ended, or some have, and the outcome may still change."""
SCHEDULER = ""
"""The node under which a scheduler's word on the whole job is kept."""


@dataclass(slots=True)
class NodeRun:
    """One node's part in one run of the job; None is not reported.

    Attributes:
        attempt_end: end of its last attempt, until the next begins.
        recovery_seconds: time between its attempts not counted yet, while its GPUs are unknown.
        counted_gpu_seconds: GPU time that the counters hold already, from totals so far.
        goodput: newest totals of the attempt ``goodput_attempt``, in GPU-seconds by state.
        floor: before it no GPU time is counted: a run before this one has had it.
    """

    start: float | None = None
    end: float | None = None
    gpus: float | None = None
    outcome: str | None = None
    failure_class: str | None = None
    reason: str | None = None
    cause: str | None = None
    rank: int | None = None
    culprit_node: str | None = None
    attempt_end: float | None = None
    recovery_seconds: float = 0.0
    counted_gpu_seconds: float = 0.0
    goodput_attempt: int = 0
    goodput: dict[str, float] = field(default_factory=dict)
    floor: float = 0.0

    @property
    def gpu_seconds(self) -> float | None:
        """GPU time from its start to its end."""
        if self.start is None or self.end is None or self.gpus is None:
            return None
        return max(0.0, self.end - max(self.start, self.floor)) * self.gpus


@dataclass(slots=True)
class NodeSign:
    """An incident of a node during a run of the job on it, from a ``node_event``."""

    sign: str
    node: str
    time: float
    detail: str = ""
    ranks: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Run:
    """From the start of the launchers to their end; a requeue begins another run.

    Attributes:
        begin: time of the start that began it.
        first_attempt: attempt of that start.
        signs: the newest incidents of its nodes.
        floor: of its nodes.
    """

    nodes: dict[str, NodeRun] = field(default_factory=dict)
    begin: float = 0.0
    first_attempt: int = 0
    signs: list[NodeSign] = field(default_factory=list)
    floor: float = 0.0

    def node(self, name: str) -> NodeRun:
        """The part of a node, which begins with this where it had none."""
        return self.nodes.setdefault(name, NodeRun(floor=self.floor))

    @property
    def machines(self) -> dict[str, NodeRun]:
        """The nodes, without the scheduler."""
        return {name: node for name, node in self.nodes.items() if name != SCHEDULER}

    @property
    def scheduler(self) -> NodeRun | None:
        """What the scheduler reports, where it reports."""
        return self.nodes.get(SCHEDULER)

    @property
    def end(self) -> float | None:
        """The last end that a node reported."""
        return max((n.end for n in self.nodes.values() if n.end is not None), default=None)


@dataclass(slots=True)
class Job:
    """One job over all its runs.

    Attributes:
        expected_nodes: how many nodes the job has by its own word; None where nobody says.
        run_number: how often the launchers were started.
        run, previous: the newest run, and the one before, whose last ends may come late.
        settle_at: ledger's wall clock at which the outcome is settled with what is there.
        counted: whether the counters hold it; they do so once, whatever comes after.
        owner: user id of the first who sent events of it from a node; None where nobody has.
        counted_until: latest time for which GPU time is counted.
        marks: (run, attempt, step) last counted, by what was counted; nodes report the same thing.
    """

    cluster: str
    job_id: str
    number: int
    project: str = ""
    queue: str = ""
    job_class: str = ""
    user: str = ""
    name: str = ""
    world_size: int | None = None
    gpu_model: str = ""
    expected_nodes: int | None = None
    gpus: float | None = None
    price_per_gpu_hour: float | None = None
    currency: str = ""
    deadline: float | None = None
    declared_tokens: float | None = None
    status: Status = "pending"
    outcome: str | None = None
    failure_class: str | None = None
    cause: str | None = None
    reason: str | None = None
    culprit_rank: int | None = None
    culprit_node: str | None = None
    submitted: float | None = None
    started: float | None = None
    ended: float | None = None
    updated: float = 0.0
    run_number: int = 0
    run: Run = field(default_factory=Run)
    previous: Run = field(default_factory=Run)
    attempts: int = 0
    requeues: int = 0
    preemptions: int = 0
    resumes: int = 0
    checkpoints: int = 0
    last_checkpoint: float | None = None
    last_checkpoint_step: int | None = None
    gpu_seconds: float = 0.0
    lost_gpu_seconds: float = 0.0
    cost: float = 0.0
    goodput: dict[str, float] = field(default_factory=dict)
    settle_at: float | None = None
    counted: bool = False
    silent_nodes: list[str] = field(default_factory=list)
    owner: int | None = None
    counted_until: float = 0.0
    marks: dict[str, list[float]] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str]:
        """Cluster and id."""
        return self.cluster, self.job_id

    @property
    def group(self) -> tuple[str, str, str, str]:
        """Label values by which it is counted."""
        return self.cluster, self.queue, self.project, self.job_class

    def is_new(self, counted: str, *marker: float) -> bool:
        """Whether this is the first report of something; later ones of the same are not."""
        position = [float(self.run_number), *marker]
        if self.marks.get(counted) == position:
            return False
        self.marks[counted] = position
        return True

    def growth(self, counted: str, attempt: int, total: int) -> int:
        """How far a total of an attempt is above the highest that a node has reported of it."""
        run, before, highest = self.marks.get(counted, [0.0, 0.0, 0.0])
        if (run, before) != (self.run_number, attempt):
            highest = 0.0
        if total <= highest:
            return 0
        self.marks[counted] = [float(self.run_number), float(attempt), float(total)]
        return total - int(highest)

    def to_json(self) -> str:
        """The record as text."""
        return _encode(self).decode()


def job_of_json(text: str) -> Job:
    """The record that ``to_json`` wrote."""
    return _decode(text)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Job).decode
