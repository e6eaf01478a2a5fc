"""Series of an imagined job, in promtool's notation, for the cases of the rule tests."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from lockstep_catalogue import training
from lockstep_catalogue.metric import Metric

JOB = {"cluster": "c1", "job_id": "j1"}
NUM_RANKS = 4
_SAME_SECONDS = 1e-9


@dataclass(frozen=True, slots=True)
class Stretch:
    """A span of time in which a value grows at one rate."""

    seconds: int
    per_second: float


@dataclass(frozen=True, slots=True)
class Course:
    """A value over time: absent at first, then from its start on growing stretch by stretch."""

    start: float
    stretches: tuple[Stretch, ...]
    unborn_seconds: int = 0

    def promtool(self, scrape_seconds: int) -> str:
        """The value at every scrape from time 0 on, in promtool's notation."""
        num_unborn = math.ceil(self.unborn_seconds / scrape_seconds)
        words = [f"_x{num_unborn}"] if num_unborn else []
        begin_seconds, value, scrape = self.unborn_seconds, self.start, num_unborn
        for stretch in self.stretches:
            end_seconds = begin_seconds + stretch.seconds
            num_scrapes = end_seconds // scrape_seconds - scrape + 1
            if num_scrapes > 0:
                first = value + (scrape * scrape_seconds - begin_seconds) * stretch.per_second
                growth = stretch.per_second * scrape_seconds
                words.append(f"{first:.9g}+{growth:.9g}x{num_scrapes - 1}")
                scrape += num_scrapes
            begin_seconds, value = end_seconds, value + stretch.seconds * stretch.per_second
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Samples:
    """One series and its course."""

    series: str
    course: Course


def samples(metric: Metric, course: Course, suffix: str = "", **labels: str) -> Samples:
    """A series of a metric; ``suffix`` is ``_bucket`` for those of a histogram."""
    unknown = labels.keys() - {each.name for each in metric.exposed_labels} - {"le", "instance"}
    assert not unknown, f"{metric.name} has no label {unknown}"
    pairs = ", ".join(f'{name}="{value}"' for name, value in labels.items())
    return Samples(f"{metric.name}{suffix}{{{pairs}}}", course)


def growing(*stretches: Stretch, start: float = 0) -> Course:
    """A value that grows stretch by stretch, from 0 where nothing else is given."""
    return Course(start, stretches)


def steady(value: float, seconds: int, unborn_seconds: int = 0) -> Course:
    """The same value all the time, after a time in which the series does not exist yet."""
    return Course(value, (Stretch(seconds, 0),), unborn_seconds)


@dataclass(frozen=True, slots=True)
class Regime:
    """A span of time in which all steps are alike: seconds by phase, one mapping a rank."""

    seconds: int
    ranks: tuple[Mapping[str, float], ...]

    def __post_init__(self) -> None:
        lengths = [sum(phases.values()) for phases in self.ranks]
        assert max(lengths) - min(lengths) < _SAME_SECONDS, (
            f"ranks leave a step together, not {lengths}"
        )

    @property
    def step_seconds(self) -> float:
        """Duration of a step, the same for all ranks."""
        return sum(self.ranks[0].values())


HEALTHY = {"data": 0.01, "forward": 0.03, "backward": 0.04, "sync": 0.01, "optimizer": 0.01}


def healthy(seconds: int) -> Regime:
    """Ranks that are alike, with steps of 0.1 s."""
    return Regime(seconds, (HEALTHY,) * NUM_RANKS)


def one_rank_late(seconds: int, rank: int, extra: Mapping[str, float]) -> Regime:
    """One rank takes ``extra`` seconds a step more, by phase, and the others wait for it."""
    late = {phase: HEALTHY.get(phase, 0) + extra.get(phase, 0) for phase in {**HEALTHY, **extra}}
    waiting = {**HEALTHY, "sync": HEALTHY["sync"] + sum(extra.values())}
    return Regime(seconds, tuple(late if r == rank else waiting for r in range(NUM_RANKS)))


def present(seconds: int, state: str = "training", instance: str = "n1:9400") -> list[Samples]:
    """The ranks on node n1, all of them in one state."""
    node = {"instance": instance, **JOB, "node": "n1"}
    info = [
        samples(training.RANK_INFO, steady(1, seconds), rank=str(rank), **node)
        for rank in range(NUM_RANKS)
    ]
    states = [
        samples(
            training.RANKS, steady(NUM_RANKS if name == state else 0, seconds), state=name, **node
        )
        for name in ("training", "checkpoint", "done")
    ]
    return info + states


def moving(*stretches: Stretch, instance: str = "n1:9400") -> list[Samples]:
    """Time of each rank's last progress: it grows by 1 a second while the rank moves."""
    return [
        samples(
            training.LAST_PROGRESS, growing(*stretches), instance=instance, **JOB, rank=str(rank)
        )
        for rank in range(NUM_RANKS)
    ]


def stepping(*regimes: Regime) -> list[Samples]:
    """Step and phase counters of every rank through the regimes."""
    series: list[Samples] = []
    phases = sorted({phase for regime in regimes for rank in regime.ranks for phase in rank})
    for rank in range(len(regimes[0].ranks)):
        labels = {"instance": "n1:9400", **JOB, "rank": str(rank)}
        steps = [Stretch(regime.seconds, 1 / regime.step_seconds) for regime in regimes]
        series.append(samples(training.STEPS, growing(*steps), **labels))
        for phase in phases:
            shares = [
                Stretch(regime.seconds, regime.ranks[rank].get(phase, 0) / regime.step_seconds)
                for regime in regimes
            ]
            series.append(samples(training.PHASE_SECONDS, growing(*shares), **labels, phase=phase))
    return series
