"""Series of a job that never ran, in the notation of promtool, for the cases of the rule tests."""

from collections.abc import Mapping
from dataclasses import dataclass

from lockstep_catalogue import training
from lockstep_catalogue.metric import Metric

SCRAPE_SECONDS = 5
JOB = {"cluster": "c1", "job_id": "j1"}
NUM_RANKS = 4
_SAME_SECONDS = 1e-9


@dataclass(frozen=True, slots=True)
class Stretch:
    """For some seconds a value grows by so much a second."""

    seconds: int
    per_second: float


@dataclass(frozen=True, slots=True)
class Samples:
    """One series with its samples at every scrape, as promtool reads them."""

    series: str
    values: str


def samples(metric: Metric, values: str, suffix: str = "", **labels: str) -> Samples:
    """A series of a metric; ``suffix`` is ``_bucket`` for those of a histogram."""
    unknown = labels.keys() - set(metric.label_names) - {"le", "instance"}
    assert not unknown, f"{metric.name} has no label {unknown}"
    inside = ", ".join(f'{name}="{value}"' for name, value in labels.items())
    return Samples(f"{metric.name}{suffix}{{{inside}}}", values)


def growing(*stretches: Stretch) -> str:
    """A value that starts at 0 and grows stretch by stretch."""
    pieces = ["0"]
    value = 0.0
    for stretch in stretches:
        step = stretch.per_second * SCRAPE_SECONDS
        num_scrapes = stretch.seconds // SCRAPE_SECONDS
        pieces.append(f"{value + step:.9g}+{step:.9g}x{num_scrapes - 1}")
        value += step * num_scrapes
    return " ".join(pieces)


def steady(value: float, seconds: int) -> str:
    """The same value at every scrape."""
    return f"{value:g}+0x{seconds // SCRAPE_SECONDS}"


@dataclass(frozen=True, slots=True)
class Regime:
    """For some seconds every rank spends its steps so: seconds by phase, one mapping a rank."""

    seconds: int
    ranks: tuple[Mapping[str, float], ...]

    def __post_init__(self) -> None:
        lengths = [sum(phases.values()) for phases in self.ranks]
        assert max(lengths) - min(lengths) < _SAME_SECONDS, (
            f"ranks leave a step together, not {lengths}"
        )

    @property
    def step_seconds(self) -> float:
        """How long a step takes, the same for all ranks."""
        return sum(self.ranks[0].values())


HEALTHY = {"data": 0.01, "forward": 0.03, "backward": 0.04, "sync": 0.01, "optimizer": 0.01}


def healthy(seconds: int) -> Regime:
    """Ranks of a kind: steps of 0.1 s."""
    return Regime(seconds, (HEALTHY,) * NUM_RANKS)


def one_late(seconds: int, rank: int, extra: Mapping[str, float]) -> Regime:
    """One rank takes so many seconds a step more, by phase, and the others wait for it."""
    late = {phase: HEALTHY.get(phase, 0) + extra.get(phase, 0) for phase in {**HEALTHY, **extra}}
    waiting = {**HEALTHY, "sync": HEALTHY["sync"] + sum(extra.values())}
    return Regime(seconds, tuple(late if r == rank else waiting for r in range(NUM_RANKS)))


def present(seconds: int, state: str = "training", instance: str = "n1:9400") -> list[Samples]:
    """Ranks that are there, in a state, on node n1."""
    node = {"instance": instance, **JOB, "node": "n1"}
    info = [
        samples(training.RANK_INFO, steady(1, seconds), rank=str(rank), **node)
        for rank in range(NUM_RANKS)
    ]
    states = [
        samples(
            training.RANKS, steady(NUM_RANKS if one == state else 0, seconds), state=one, **node
        )
        for one in ("training", "checkpoint", "done")
    ]
    return info + states


def moving(*stretches: Stretch, instance: str = "n1:9400") -> list[Samples]:
    """When each rank last made progress; time begins at 0 and goes at 1 a second, or stands."""
    return [
        samples(
            training.LAST_PROGRESS, growing(*stretches), instance=instance, **JOB, rank=str(rank)
        )
        for rank in range(NUM_RANKS)
    ]


def stepping(*regimes: Regime) -> list[Samples]:
    """Step and phase counters of every rank through the regimes."""
    made: list[Samples] = []
    phases = sorted({phase for regime in regimes for one in regime.ranks for phase in one})
    for rank in range(len(regimes[0].ranks)):
        labels = {"instance": "n1:9400", **JOB, "rank": str(rank)}
        steps = [Stretch(regime.seconds, 1 / regime.step_seconds) for regime in regimes]
        made.append(samples(training.STEPS, growing(*steps), **labels))
        for phase in phases:
            shares = [
                Stretch(one.seconds, one.ranks[rank].get(phase, 0) / one.step_seconds)
                for one in regimes
            ]
            made.append(samples(training.PHASE_SECONDS, growing(*shares), **labels, phase=phase))
    return made
