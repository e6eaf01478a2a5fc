"""Makes jobs whose truth is known: steps in memory, or real pages written by the page writer."""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep_reports.analysis.steps import StepAnalysis
from lockstep_reports.document.steps import document_steps
from lockstep_reports.recording.recording import Recording
from lockstep_reports.recording.steps import Member, Steps
from lockstep_reports.render import json_text
from lockstep_reports.search.score import score
from lockstep_reports.verdict.losses import Loss, list_episode_losses
from lockstep_reports.verdict.verdict import Episode

from .corpus.made_pages import write_pages
from .corpus.made_run import Cost, MadeRun, Spent

Array = NDArray[np.float64]


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
        noise, jitter: those of the run.
        nodes: nodes that the ranks are spread over, in blocks.
        clock_skew: seconds by which the clock of a node is ahead.
        round_steps: steps after which the ranks meet.
        checkpoint_every: rank 0 alone writes a checkpoint of 0.5 s so often; 0 is never.
    """

    ranks: int = 4
    num_steps: int = 200
    noise: str = "normal"
    jitter: float = 0.02
    slow: tuple[Slow, ...] = ()
    nodes: int = 1
    clock_skew: dict[int, float] = field(default_factory=dict)
    round_steps: int = 1
    checkpoint_every: int = 0
    job_id: str = "synthetic"
    attempt: int = 0
    begin_seconds: float = 1_790_000_000.0
    seed: int = 0

    @property
    def run(self) -> MadeRun:
        """What its ranks spend, with nothing uneven but the noise and what is slow."""
        every = self.checkpoint_every
        saves = [Cost(hits=0, phase="checkpoint", seconds=0.5, every=every, first=every)]
        slow = [
            Cost(hits=each.rank, phase=each.phase, seconds=each.seconds,
                 first=each.from_step, until=each.until_step)
            for each in self.slow
        ]  # fmt: skip
        return MadeRun(
            ranks=self.ranks, steps=self.num_steps, noise=self.noise, jitter=self.jitter,
            kind="rounds" if self.round_steps > 1 else "step", round_steps=self.round_steps,
            levels=0.0, warm_up=0, is_bare=True, nodes=self.nodes, seed=self.seed,
            costs=(*(saves if every else ()), *slow),
        )  # fmt: skip

    def spent(self) -> Spent:
        """Where the time of each rank and step went."""
        return self.run.spent()

    def steps(self) -> Steps:
        """The job as the reader would give it."""
        spent = self.spent()
        blocks = [rank * self.nodes // self.ranks for rank in range(self.ranks)]
        skew = np.array([self.clock_skew.get(block, 0.0) for block in blocks])[:, None]
        rounds = self.num_steps // self.round_steps if self.round_steps > 1 else 0
        return Steps(
            job_id=self.job_id,
            attempt=self.attempt,
            world_size=self.ranks,
            members=tuple(
                Member(rank=rank, node=f"node-{block}", sync_rounds=rounds)
                for rank, block in enumerate(blocks)
            ),
            numbers=np.arange(self.num_steps),
            seconds=spent.seconds,
            phases=spent.phases,
            start=self.begin_seconds + spent.start + skew,
            last_arrival=self.begin_seconds + spent.arrival + skew,
            loss=np.full_like(spent.start, 2.5),
        )

    def write(self, root: Path, skip: tuple[int, ...] = ()) -> Path:
        """Writes a real page a rank under ``root``; gives the folder of the job."""
        begin_ns = int((self.begin_seconds - time.time() + time.monotonic()) * 1e9)
        return write_pages(
            self.run, root, job_id=self.job_id, attempt=self.attempt, begin_ns=begin_ns, skip=skip
        )


def recording_of(steps: Steps) -> Recording:
    """Steps as if pages had been read long after, of an attempt that nobody ended."""
    return Recording(
        source_kind="pages", path=Path("j"), steps=steps, read_at_seconds=1_790_001_000.0
    )


def published(analysis: StepAnalysis) -> dict[str, Any]:
    payload: dict[str, Any] = json.loads(json_text.render(document_steps(analysis), Path("-")))
    return payload


def losses_of(steps: Steps, episodes: tuple[Episode, ...]) -> tuple[Loss, ...]:
    """What these episodes alone cost."""
    return list_episode_losses(steps, score(steps), episodes)
