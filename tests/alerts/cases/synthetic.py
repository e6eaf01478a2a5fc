"""Series of an imagined job, in promtool's notation, for the cases of the rule tests."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from lockstep_catalogue import training
from lockstep_catalogue.metric import Series
from lockstep_catalogue.vocabulary import Clock
from lockstep_catalogue.windows import ScrapeWindows

JOB = {"cluster": "c1", "job_id": "j1"}
MACHINE = {"cluster": "c1", "node": "n1"}
JOB_NODE = {**JOB, "node": "n1"}
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
                words.append(f"{first:.9g}{growth:+.9g}x{num_scrapes - 1}")
                scrape += num_scrapes
            begin_seconds, value = end_seconds, value + stretch.seconds * stretch.per_second
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Samples:
    series: str
    course: Course


def samples(metric: Series, course: Course, suffix: str = "", **labels: str) -> Samples:
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


def sample_node(series: Series, course: Course, node: str = "n1", **labels: str) -> Samples:
    return samples(series, course, instance=f"{node}:9400", cluster="c1", node=node, **labels)


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """When things happen in a case; the alert fires by ``fires_within_seconds`` after the fault."""

    windows: ScrapeWindows
    fires_within_seconds: int

    @property
    def onset_seconds(self) -> int:
        """When the fault begins: the live windows are full, and a scrape has just gone by."""
        # A second after a scrape is the worst moment: the next one comes latest.
        scrape_seconds = self.windows.scrape_seconds
        return math.ceil(self.windows.live_seconds / scrape_seconds + 1) * scrape_seconds + 1

    @property
    def fires_by_seconds(self) -> int:
        """The moment at which a firing case is evaluated."""
        return self.onset_seconds + self.fires_within_seconds

    def steady(self, value: float) -> Course:
        """The same value until the case is evaluated."""
        return steady(value, self.fires_by_seconds)

    def appears(self, value: float = 1) -> Course:
        """A series that is born with this value at the onset."""
        return steady(value, self.fires_by_seconds, self.onset_seconds)

    def steps_up(self, to: float = 1, start: float = 0) -> Course:
        """A value that leaves its start at the onset, within a second, and stays."""
        rise, after = Stretch(1, to - start), Stretch(self.fires_within_seconds, 0)
        return growing(Stretch(self.onset_seconds, 0), rise, after, start=start)

    def counts(self, per_second: float) -> Course:
        """A counter that grows at one rate."""
        return growing(Stretch(self.fires_by_seconds, per_second))

    def grows(self, per_second: float, before: float = 0) -> Course:
        """A counter whose rate changes at the onset."""
        after = Stretch(self.fires_within_seconds, per_second)
        return growing(Stretch(self.onset_seconds, before), after)


def trains(
    timing: Timing, ranks: float = 1, node: str = "n1", job_id: str = "j1", state: str = "training"
) -> Samples:
    """Ranks of a job on a node, all of them in one state."""
    return sample_node(training.RANKS, timing.steady(ranks), node, job_id=job_id, state=state)


def spends(course_by_state: Mapping[str, Course]) -> list[Samples]:
    """Where the time of a job's ranks goes."""
    return [
        sample_node(training.GOODPUT_SECONDS, course, job_id="j1", goodput=state)
        for state, course in course_by_state.items()
    ]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a rank is, and by which clock it is timed; a stage is empty without a pipeline."""

    node: str = "n1"
    stage: str = ""
    clock: Clock = "host"

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the job and of the agent that reports the rank."""
        return {"instance": f"{self.node}:9400", **JOB, "node": self.node}


ONE_NODE = (Placement(),) * NUM_RANKS
TWO_NODES = (Placement("n1"),) * 2 + (Placement("n2"),) * 2
STAGES = tuple(Placement("n1", str(stage)) for stage in range(NUM_RANKS))
"""A pipeline of one rank a stage."""
TWO_REPLICAS = tuple(Placement(f"n{1 + rank // 2}", str(rank % 2)) for rank in range(NUM_RANKS))
"""A pipeline of two stages on each of two nodes."""
TWO_CLOCKS = (Placement(),) + (Placement(clock="device"),) * (NUM_RANKS - 1)
"""One rank that only the host timed, among ranks with a device."""
DEVICE_CLOCK = (Placement(clock="device"),) * NUM_RANKS


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
    return ranks_late(seconds, {rank: extra})


def ranks_late(seconds: int, extra_by_rank: Mapping[int, Mapping[str, float]]) -> Regime:
    """Some ranks take ``extra`` seconds a step more, and all leave the step with the last one."""
    longest = max((sum(extra.values()) for extra in extra_by_rank.values()), default=0.0)
    ranks = []
    for rank in range(NUM_RANKS):
        extra = extra_by_rank.get(rank, {})
        phases = {
            phase: HEALTHY.get(phase, 0) + extra.get(phase, 0) for phase in {**HEALTHY, **extra}
        }
        ranks.append({**phases, "sync": phases["sync"] + longest - sum(extra.values())})
    return Regime(seconds, tuple(ranks))


def present(
    seconds: int, state: str = "training", places: tuple[Placement, ...] = ONE_NODE
) -> list[Samples]:
    """The ranks on their nodes, all of them in one state."""
    info = [
        samples(
            training.RANK_INFO,
            steady(1, seconds),
            rank=str(rank),
            clock=placement.clock,
            **({"pp": placement.stage} if placement.stage else {}),
            **placement.labels,
        )
        for rank, placement in enumerate(places)
    ]
    states = [
        samples(
            training.RANKS,
            steady(places.count(placement) if name == state else 0, seconds),
            state=name,
            **placement.labels,
        )
        for placement in {placement.node: placement for placement in places}.values()
        for name in ("training", "checkpoint", "done")
    ]
    return info + states


def moving(*stretches: Stretch, places: tuple[Placement, ...] = ONE_NODE) -> list[Samples]:
    """Time of each rank's last progress: it grows by 1 a second while the rank moves."""
    return [
        samples(training.LAST_PROGRESS, growing(*stretches), rank=str(rank), **placement.labels)
        for rank, placement in enumerate(places)
    ]


def stepping(*regimes: Regime, places: tuple[Placement, ...] = ONE_NODE) -> list[Samples]:
    """Step and phase counters of every rank through the regimes."""
    series: list[Samples] = []
    phases = sorted({phase for regime in regimes for rank in regime.ranks for phase in rank})
    for rank in range(len(regimes[0].ranks)):
        labels = {**places[rank].labels, "rank": str(rank)}
        steps = [Stretch(regime.seconds, 1 / regime.step_seconds) for regime in regimes]
        series.append(samples(training.STEPS, growing(*steps), **labels))
        for phase in phases:
            shares = [
                Stretch(regime.seconds, regime.ranks[rank].get(phase, 0) / regime.step_seconds)
                for regime in regimes
            ]
            series.append(samples(training.PHASE_SECONDS, growing(*shares), **labels, phase=phase))
    return series


def training_job(*regimes: Regime, places: tuple[Placement, ...] = ONE_NODE) -> list[Samples]:
    """Everything that the ranks of a job that trains report through the regimes."""
    seconds = sum(regime.seconds for regime in regimes)
    return [
        *present(seconds, places=places),
        *moving(Stretch(seconds, 1), places=places),
        *stepping(*regimes, places=places),
    ]


OWNER = {"project": "p", "queue": "q", "class": "mixed"}


def on_many_gpus(seconds: int) -> list[Samples]:
    """The job says that it has a thousand ranks, of which the others are not seen."""
    return [
        samples(training.WORLD_RANKS, steady(1000, seconds), instance="n1:9400", **JOB_NODE),
        samples(training.JOB_INFO, steady(1, seconds), instance="n1:9400", **JOB_NODE, **OWNER),
    ]


def loads(ratio: float, seconds: int, load: str = "tokens", rank: int = 2) -> list[Samples]:
    """Loads of a node on which one rank has so many times the median."""
    node = {"instance": "n1:9400", **JOB, "node": "n1", "load": load}
    heaviest, median = steady(1000 * ratio, seconds), steady(1000, seconds)
    return [
        samples(training.HEAVIEST_LOAD, heaviest, rank=str(rank), **node),
        samples(training.MEDIAN_LOAD, median, **node),
    ]
