"""Cases of conditions on attempts of jobs."""

from collections.abc import Mapping

from lockstep_alerts.conditions.attempts import (
    CrashLoop,
    DataSkew,
    FailedOnStart,
    LossAnomaly,
    NotFinite,
    ReplicasDiffer,
    TopologyWrong,
    _Counted,
    _Counter,
)
from lockstep_catalogue import agent, training
from lockstep_catalogue.labels import NODE, RANK
from lockstep_catalogue.metric import Metric

from .case import Case, proves
from .synthetic import (
    JOB,
    JOB_NODE,
    Course,
    Samples,
    Stretch,
    Timing,
    growing,
    loads,
    sample_node,
    samples,
    steady,
)


@proves(FailedOnStart)
def failed_on_start(condition: FailedOnStart, timing: Timing) -> list[Case]:
    failed = [_ranks("failed", timing.steps_up(2)), _ranks("init", timing.steps_up(0, 2))]
    well = timing.steady(0)
    starts = [_ranks("failed", well), _ranks("init", timing.steps_up(2, 2))]
    stepped = sample_node(training.STEP, timing.steady(700), job_id="j1")
    return [
        Case("it fails before its first step", failed, JOB),
        Case("it fails later", [*failed, stepped]),
        Case("it starts", starts),
    ]


@proves(CrashLoop)
def crash_loop(condition: CrashLoop, timing: Timing) -> list[Case]:
    def restarted(times: int) -> list[Samples]:
        return [sample_node(training.ATTEMPT_NUMBER, timing.steps_up(times + 4, 4), job_id="j1")]

    return [
        Case("it restarts again and again", restarted(condition.least_restarts), JOB),
        Case("it restarts once fewer", restarted(condition.least_restarts - 1)),
    ]


@proves(TopologyWrong)
def topology_wrong(condition: TopologyWrong, timing: Timing) -> list[Case]:
    fits = _start(timing, {"n1": (4, 2, 1), "n2": (4, 2, 1)})
    smaller = _start(timing, {"n1": (2, 2, 1), "n2": (4, 2, 0)})
    return [
        Case("nodes disagree", _start(timing, {"n1": (4, 2, 1), "n2": (2, 2, 1)}), JOB),
        Case("a node is missing", _start(timing, {"n1": (4, 2, 1)}), JOB),
        Case("ranks are too many", _start(timing, {"n1": (2, 2, 1), "n2": (2, 2, 1)}), JOB),
        Case("all are there", fits),
        Case("an earlier attempt was larger", smaller),
    ]


def _ranks(state: str, course: Course, node: str = "n1") -> Samples:
    return sample_node(training.RANKS, course, node, job_id="j1", state=state)


def _start(timing: Timing, nodes: Mapping[str, tuple[int, int, int]]) -> list[Samples]:
    """Nodes with the size of the job by their own word, their ranks, and their attempt."""
    lasting, series = timing.fires_by_seconds, []
    for node, (size, num_ranks, attempt) in nodes.items():
        series += [
            sample_node(training.WORLD_RANKS, steady(size, lasting), node, job_id="j1"),
            sample_node(training.ATTEMPT_NUMBER, steady(attempt, lasting), node, job_id="j1"),
            _ranks("init", steady(num_ranks, lasting), node),
        ]
    return series


@proves(_Counted)
def counted(condition: _Counted, timing: Timing) -> list[Case]:
    later = condition.window.seconds + timing.fires_by_seconds
    first = condition.COUNTERS[0]
    born = steady(1, timing.fires_within_seconds, condition.window.seconds + timing.onset_seconds)
    labels = JOB_NODE if NODE in condition.LABELS else JOB

    def of_rank(counter: _Counter) -> dict[str, str]:
        return {RANK.name: "2"} if RANK in counter[0].labels else {}

    fires_as = {**labels, **of_rank(first)}
    watched = sample_node(agent.AGENT_INFO, steady(1, later), version="1")

    def counted(counter: _Counter, course: Course) -> Samples:
        metric, matcher, _ = counter
        value = {} if matcher is None else {matcher.label.name: matcher.value.split("|")[0]}
        return samples(metric, course, instance="n1:9400", **JOB_NODE, **of_rank(counter), **value)

    appears = counted(first, timing.appears(1))
    totals = [
        sample_node(each, timing.steps_up(), job_id="j1")
        for each in first[2:]
        if isinstance(each, Metric)
    ]
    return [
        *(
            Case(
                f"{each[0].name} grows",
                [counted(each, timing.steps_up())],
                {**labels, **of_rank(each)},
            )
            for each in condition.COUNTERS
        ),
        Case("it stays at zero", [counted(first, timing.steady(0))]),
        Case("it is born above zero", [watched, counted(first, born)], fires_as, later),
        Case("a fresh Prometheus sees it", [counted(first, born)], None, later),
        *(Case("a new node's total grows", [appears, total], fires_as) for total in totals),
    ]


@proves(NotFinite)
def not_finite(condition: NotFinite, timing: Timing) -> list[Case]:
    onset, after = timing.onset_seconds, timing.fires_within_seconds
    begin = condition.least_scrapes * timing.windows.scrape_seconds // 2
    node = {"instance": "n1:9400", **JOB, "node": "n1"}
    steps = samples(training.STEPS, timing.counts(1), **node, rank="0")

    def lost(course: Course) -> list[Samples]:
        return [samples(training.NONFINITE_STEPS, course, **node), steps]

    brief = growing(Stretch(onset, 0), Stretch(begin, 1), Stretch(after, 0))
    return [
        Case("every step is lost", lost(timing.grows(1)), JOB),
        Case("loss scaling finds its scale", lost(brief)),
        Case("loss scaling overflows now and then", lost(timing.counts(1 / 20))),
        Case("it stays at zero", lost(timing.steady(0))),
    ]


@proves(LossAnomaly)
def loss_anomaly(condition: LossAnomaly, timing: Timing) -> list[Case]:
    def counted(metric: Metric, anomaly: str, to: int) -> list[Samples]:
        return [sample_node(metric, timing.steps_up(to), job_id="j1", anomaly=anomaly)]

    diverges, spike = {**JOB, "anomaly": "divergence"}, {**JOB, "anomaly": "spike"}
    return [
        Case("it diverges", counted(training.ANOMALOUS, "divergence", 4), diverges),
        Case("it spikes", counted(training.ANOMALIES, "spike", 1), spike),
        Case("it is well", counted(training.ANOMALOUS, "divergence", 0)),
    ]


@proves(ReplicasDiffer)
def replicas_differ(condition: ReplicasDiffer, timing: Timing) -> list[Case]:
    odd = sample_node(training.ODD_REPLICAS, timing.steps_up(), job_id="j1")

    def nodes(fingerprints: tuple[int, int], steps: tuple[int, int]) -> list[Samples]:
        """Two nodes with a fingerprint each, from the onset on."""
        return [
            sample_node(metric, timing.appears(figure), node, job_id="j1", part_of_model="all")
            for node, value, step in zip(("n1", "n2"), fingerprints, steps, strict=True)
            for metric, figure in ((training.FINGERPRINT, value), (training.FINGERPRINT_STEP, step))
        ]

    return [
        Case("two nodes differ", nodes((7, 9), (200, 200)), JOB),
        Case("ranks of a node differ", [odd], JOB),
        Case("two nodes agree", nodes((7, 7), (200, 200))),
        Case("one node is a fingerprint behind", nodes((7, 9), (200, 100))),
    ]


@proves(DataSkew)
def data_skew(condition: DataSkew, timing: Timing) -> list[Case]:
    above, below = 1.1 * (1 + condition.above_ratio), 1 + 0.5 * condition.above_ratio
    lasting = timing.fires_by_seconds
    return [
        Case("one rank has more tokens", loads(above, lasting), {**JOB, "load": "tokens"}),
        Case("by less than that", loads(below, lasting)),
        Case("one sequence is long", loads(above, lasting, "longest_sequence")),
    ]
