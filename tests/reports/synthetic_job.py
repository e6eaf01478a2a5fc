"""Makes jobs whose truth is known: steps in memory, or real pages written by the page writer."""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_records.files.jobs import page_path
from lockstep_records.page.layout import PHASES, SLOT
from lockstep_records.page.writer import PageWriter, RankIdentity
from lockstep_reports.analysis.steps import StepAnalysis
from lockstep_reports.document.steps import document_steps
from lockstep_reports.recording.recording import Recording
from lockstep_reports.recording.steps import Member, Steps
from lockstep_reports.render import json_text
from lockstep_reports.search.score import score
from lockstep_reports.verdict.losses import Loss, list_episode_losses
from lockstep_reports.verdict.verdict import Episode

Array = NDArray[np.float64]
_BASE = {"data": 0.01, "forward": 0.025, "backward": 0.045, "optimizer": 0.008, "other": 0.002}
_TRANSFER_SECONDS = 0.01
_BEFORE_SYNC = ("data", "forward", "backward")
_AFTER_SYNC = ("optimizer", "checkpoint", "eval", "other")


@dataclass(frozen=True, kw_only=True)
class Slow:
    """One rank, slower in one phase from a step on, up to another."""

    rank: int
    phase: str = "backward"
    seconds: float = 0.03
    from_step: int = 100
    until_step: int = 1 << 40


@dataclass(frozen=True, kw_only=True)
class SyntheticJob:
    """A synchronous job of about 0.1 s a step.

    Attributes:
        noise: kind of jitter on the forward work: uniform, normal, lognormal, exponential, or
            dragging, which goes on over about ten steps.
        jitter: its size as a share of the step.
        nodes: nodes that the ranks are spread over, in blocks.
        clock_skew: seconds by which the clock of a node is ahead.
        checkpoint_every: rank 0 alone writes a checkpoint of 0.5 s so often; 0 is never.
    """

    ranks: int = 4
    num_steps: int = 200
    noise: str = "normal"
    jitter: float = 0.02
    slow: tuple[Slow, ...] = ()
    nodes: int = 1
    clock_skew: dict[int, float] = field(default_factory=dict)
    checkpoint_every: int = 0
    job_id: str = "synthetic"
    attempt: int = 0
    begin_seconds: float = 1_790_000_000.0
    seed: int = 0

    def phases(self) -> dict[str, Array]:
        """Seconds by phase [ranks x steps], synchronisation as it follows from the others."""
        shape = (self.ranks, self.num_steps)
        phases = {phase: np.full(shape, _BASE.get(phase, 0.0)) for phase in STEP_PHASES}
        phases["forward"] += self._jitter(shape)
        if self.checkpoint_every:
            phases["checkpoint"][0, self.checkpoint_every :: self.checkpoint_every] = 0.5
        for slow in self.slow:
            phases[slow.phase][slow.rank, slow.from_step : slow.until_step] += slow.seconds
        arrival = self._arrival(phases)
        phases["sync"] = arrival.max(axis=0) + _TRANSFER_SECONDS - arrival
        return phases

    def _arrival(self, phases: dict[str, Array]) -> Array:
        """Seconds from the end of the last synchronisation to the own arrival at the next."""
        after: Array = np.sum([phases[phase] for phase in _AFTER_SYNC], axis=0)
        before: Array = np.sum([phases[phase] for phase in _BEFORE_SYNC], axis=0)
        return before + np.pad(after, ((0, 0), (1, 0)))[:, :-1]

    def _jitter(self, shape: tuple[int, int]) -> Array:
        draw, size = np.random.default_rng(self.seed), 0.1 * self.jitter
        if self.noise == "uniform":
            return draw.uniform(0, size, shape)
        if self.noise == "normal":
            return np.abs(draw.normal(0, size, shape))
        if self.noise == "dragging":
            return np.abs(_dragging(draw.normal(0, size, shape)))
        if self.noise == "lognormal":
            return size * draw.lognormal(0, 1, shape)
        return draw.exponential(size, shape)

    def node_of(self, rank: int) -> str:
        """Name of the rank's node."""
        return f"node-{rank * self.nodes // self.ranks}"

    def steps(self) -> Steps:
        """The job as the reader would give it."""
        phases = self.phases()
        arrival = self._arrival(phases)
        end = self.begin_seconds + np.cumsum(arrival.max(axis=0) + _TRANSFER_SECONDS)
        skew = [self.clock_skew.get(r * self.nodes // self.ranks, 0.0) for r in range(self.ranks)]
        last = end - phases["sync"] + np.array(skew)[:, None]
        before = np.sum([phases[phase] for phase in _BEFORE_SYNC], axis=0)
        return Steps(
            job_id=self.job_id,
            attempt=self.attempt,
            world_size=self.ranks,
            members=tuple(Member(rank=r, node=self.node_of(r)) for r in range(self.ranks)),
            numbers=np.arange(self.num_steps),
            seconds=np.sum(list(phases.values()), axis=0),
            phases=phases,
            start=last - before,
            last_arrival=last,
            loss=np.full_like(last, 2.5),
        )

    def write(self, root: Path, skip: tuple[int, ...] = ()) -> Path:
        """Writes a real page a rank under ``root``; gives the folder of the job."""
        steps = self.steps()
        for rank in range(self.ranks):
            if rank not in skip:
                self._write_rank(root, steps, rank)
        return root / "jobs" / self.job_id

    def identity_of(self, rank: int) -> RankIdentity:
        """What the rank's page says of it."""
        return RankIdentity(
            job_id=self.job_id,
            rank=rank,
            local_rank=rank,
            world_size=self.ranks,
            attempt=self.attempt,
            node=self.node_of(rank),
        )

    def _write_rank(self, root: Path, steps: Steps, rank: int) -> None:
        path = page_path(root, self.job_id, self.attempt, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        page = PageWriter(path, self.identity_of(rank), rows=self.num_steps + 1)
        offset = time.time() - time.monotonic()
        for column, number in enumerate(steps.numbers):
            times = [
                int((float(matrix[rank, column]) - offset) * 1e9)
                for matrix in (steps.start, steps.last_arrival)
            ]
            phases = [float(steps.phases[phase][rank, column]) for phase in STEP_PHASES]
            page.append(
                step=int(number),
                start_ns=times[0],
                seconds=sum(phases),
                phase_seconds=phases,
                last_arrival_ns=times[1],
                loss=2.5,
                tokens=64,
                samples=8,
            )
        page.signed[SLOT.word("step")] = int(steps.numbers[-1])
        page.words[SLOT.word("present")] |= SLOT.presence["step"]
        page.heartbeat(time.monotonic_ns(), PHASES.index("done"))
        page.commit(time.monotonic_ns())
        page.close()


def recording_of(steps: Steps) -> Recording:
    """Steps as if pages had been read long after, of an attempt that nobody ended."""
    return Recording(
        source_kind="pages", path=Path("j"), steps=steps, read_at_seconds=1_790_001_000.0
    )


def published(analysis: StepAnalysis) -> dict[str, Any]:
    """The JSON of the report on an analysis."""
    payload: dict[str, Any] = json.loads(json_text.render(document_steps(analysis), Path("-")))
    return payload


def _dragging(values: Array, correlation: float = 0.9) -> Array:
    """Independent values made to follow each other: first-order autoregression."""
    for step in range(1, values.shape[1]):
        values[:, step] = (
            correlation * values[:, step - 1] + (1 - correlation**2) ** 0.5 * values[:, step]
        )
    return values


def losses_of(steps: Steps, episodes: tuple[Episode, ...]) -> tuple[Loss, ...]:
    """What these episodes alone cost."""
    return list_episode_losses(steps, score(steps), episodes)
