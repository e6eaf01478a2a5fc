"""The five jobs, their layouts over two nodes, and what becomes slow in each, and when.

Work is simulated by sleeps, so that twenty ranks fit two cores: each rank sleeps in its forward,
and the last stage of a pipeline in its backward too. A stretch is a number of steps of the job.
"""

from dataclasses import dataclass

RANKS_A_NODE = 2
WARM_UP_SECONDS = 90.0  # time for the start of twenty ranks, before the healthy time counts
SLOW_SECONDS = 210.0
REST_SECONDS = 150.0  # the means forget the slow rank, and its alert ends


@dataclass(frozen=True, kw_only=True)
class Slow:
    """Ranks that sleep longer in a phase from some step on.

    Attributes:
        kind: of the trainer's faults.
        phase: in which they must be found.
        names: labels that the page has to have.
    """

    ranks: tuple[int, ...]
    kind: str
    delay_ms: int
    phase: str
    alert: str
    names: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job of four ranks, two on each node.

    Attributes:
        usual: the faults that simulate its ordinary work.
        step_seconds: duration of a step by these sleeps.
        slow: one slow rank.
        slow_node: all ranks of node n2, where this job has such a time.
    """

    name: str
    flags: tuple[str, ...]
    usual: tuple[str, ...]
    step_seconds: float
    slow: Slow
    slow_node: Slow | None = None

    def stretches(self, healthy_seconds: float) -> dict[str, tuple[int, int]]:
        """First step, and first step after, of each stretch of the job."""
        slow_step = self.step_seconds + self.slow.delay_ms / 1e3
        healthy = 1 + round((WARM_UP_SECONDS + healthy_seconds) / self.step_seconds)
        slow_end = healthy + round(SLOW_SECONDS / slow_step)
        stretches = {
            "healthy": (1 + round(WARM_UP_SECONDS / self.step_seconds), healthy),
            "slow rank": (healthy, slow_end),
        }
        if self.slow_node is not None:
            begin = slow_end + round(REST_SECONDS / self.step_seconds)
            slow_step = self.step_seconds + self.slow_node.delay_ms / 1e3
            stretches["slow node"] = (begin, begin + round(SLOW_SECONDS / slow_step))
        return stretches

    def faults(self, healthy_seconds: float) -> list[str]:
        """The trainer's flags of the usual work and of what becomes slow."""
        texts = [f"{text},step=1,until=end" for text in self.usual]
        stretches = self.stretches(healthy_seconds)
        for name, slow in (("slow rank", self.slow), ("slow node", self.slow_node)):
            if slow is not None:
                begin, end = stretches[name]
                span = f"step={begin},until={end},delay={slow.delay_ms}ms"
                texts += [f"{slow.kind}:rank={rank},{span}" for rank in slow.ranks]
        return [word for text in texts for word in ("--fault", text)]


def _whole_node(delay_ms: int, kind: str, phase: str) -> Slow:
    return Slow(
        ranks=(2, 3),
        kind=kind,
        delay_ms=delay_ms,
        phase=phase,
        alert="TrainStragglerNode",
        names={"node": "n2", "phase": phase},
    )


def _one_rank(rank: int, kind: str, delay_ms: int, phase: str, alert: str, **names: str) -> Slow:
    labels = {"rank": str(rank), "node": f"n{1 + rank // RANKS_A_NODE}", "phase": phase, **names}
    return Slow(ranks=(rank,), kind=kind, delay_ms=delay_ms, phase=phase, alert=alert, names=labels)


_RANK = "TrainStragglerRank"
_ALIKE = ("slow-forward:rank=all,delay=800ms",)
JOBS = (
    Job(
        name="ddp",
        flags=("--strategy", "ddp"),
        usual=_ALIKE,
        step_seconds=0.8,
        slow=_one_rank(2, "slow-backward", 800, "backward", _RANK),
        slow_node=_whole_node(800, "slow-loader", "data"),
    ),
    Job(
        name="fsdp2",
        flags=("--strategy", "fsdp2"),
        usual=_ALIKE,
        step_seconds=0.8,
        slow=_one_rank(1, "slow-loader", 800, "data", _RANK),
    ),
    Job(
        name="pipeline",
        flags=("--strategy", "pp", "--micro-batches", "4"),
        usual=("slow-forward:rank=all,delay=200ms", "slow-backward:rank=3,delay=1000ms"),
        step_seconds=1.8,
        slow=_one_rank(1, "slow-backward", 2000, "backward", "TrainStragglerStage", pp="1"),
    ),
    Job(
        name="dp-pp",
        flags=("--strategy", "hybrid", "--dp", "2", "--pp", "2", "--micro-batches", "2"),
        usual=(
            "slow-forward:rank=all,delay=400ms",
            "slow-backward:rank=2,delay=400ms",
            "slow-backward:rank=3,delay=400ms",
        ),
        step_seconds=1.2,
        slow=_one_rank(3, "slow-forward", 1200, "forward", _RANK, pp="1"),
    ),
    Job(
        name="dp-tp",
        flags=("--strategy", "hybrid", "--dp", "2", "--tp", "2"),
        usual=_ALIKE,
        step_seconds=0.8,
        slow=_one_rank(1, "slow-optimizer", 800, "optimizer", _RANK),
        slow_node=_whole_node(800, "slow-forward", "forward"),
    ),
)
SMALL = ("--layers", "4", "--width", "32", "--heads", "2", "--sequence", "32", "--batch", "4")
