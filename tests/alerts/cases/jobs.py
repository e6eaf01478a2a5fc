"""Cases of conditions on jobs."""

from collections.abc import Mapping

from lockstep_alerts.conditions.jobs import (
    _JUDGED_EVERY_SECONDS,
    JobLosing,
    JobNotProgressing,
    LatePart,
    StageUneven,
)
from lockstep_alerts.rules.steps import MIN_HISTORY_SECONDS
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import read_spec
from lockstep_catalogue import agent, training
from lockstep_catalogue.metric import Metric
from lockstep_outcomes.progress.hangs import HANG_TIMEOUT_SECONDS

from .case import Case, proves
from .synthetic import (
    DEVICE_CLOCK,
    HEALTHY,
    JOB,
    NUM_RANKS,
    ONE_NODE,
    OWNER,
    STAGES,
    TWO_CLOCKS,
    TWO_NODES,
    TWO_REPLICAS,
    Course,
    Placement,
    Samples,
    Stretch,
    Timing,
    growing,
    healthy,
    loads,
    moving,
    on_many_gpus,
    present,
    ranks_late,
    sample_node,
    samples,
    steady,
    stepping,
    training_job,
)

_LATE_RANK = 2
_SLOW_NODE_RANKS = (2, 3)
_STANDSTILL_SECONDS = 120
_Extra = Mapping[int, Mapping[str, float]]
"""Seconds a step by phase that each late rank takes more."""
_LIMITS = read_spec(spec_path()).limits


def _extra_seconds(ratio: float) -> float:
    """Seconds a step of one rank that are this share of the step that they lengthen."""
    return sum(HEALTHY.values()) * ratio / (1 - ratio)


_ABOVE = {"backward": _extra_seconds(1.05 * _LIMITS.late_ratio)}
_BELOW = {"backward": _extra_seconds(0.8 * _LIMITS.late_ratio)}


@proves(LatePart)
def late_part(_: LatePart, timing: Timing) -> list[Case]:
    return [*_late_rank(timing), *_late_node(timing), *_slowed_stage(timing)]


def _late_rank(timing: Timing) -> list[Case]:
    slow_rank = {**JOB, "rank": str(_LATE_RANK), "phase": "backward", "cause": "rank"}
    pause = {"checkpoint": _extra_seconds(2 * _LIMITS.late_ratio)}
    whole_node = dict.fromkeys(_SLOW_NODE_RANKS, _ABOVE)
    late = {_LATE_RANK: _ABOVE}

    def job(extra: _Extra, places: tuple[Placement, ...] = ONE_NODE) -> list[Samples]:
        return _straggling(timing, extra, places)

    on_n1 = {**slow_rank, "node": "n1"}
    series = job(late)
    longer = sum(_ABOVE.values()) / sum(HEALTHY.values())
    seconds = timing.fires_by_seconds
    all_of_it, half = (
        [*series, *loads(1 + share * longer, seconds, rank=_LATE_RANK)] for share in (1, 0.5)
    )
    return [
        Case("one rank late", series, on_n1),
        Case(
            "one rank of a stage late",
            job(late, TWO_REPLICAS),
            {**slow_rank, "node": "n2", "pp": "0"},
        ),
        Case("less late than that", job({_LATE_RANK: _BELOW})),
        Case("one rank writes the checkpoint", job({_LATE_RANK: pause})),
        Case(
            "all ranks of a node are late",
            job(whole_node, TWO_NODES),
            {**JOB, "node": "n2", "phase": "backward", "cause": "node"},
        ),
        Case("stages of one rank are uneven", job(late, STAGES)),
        Case("one rank late by devices", job(late, DEVICE_CLOCK), on_n1),
        Case("late by another clock than the others", job(late, TWO_CLOCKS)),
        Case("a slow worker of a parameter server", [*series, *_exchanges(timing, "independent")]),
        Case("late at the rounds of local SGD", [*series, *_exchanges(timing, "round")], on_n1),
        _standstill(timing),
        Case("it has more data", all_of_it, None, seconds),
        Case("more data explains half of it", half, on_n1, seconds),
    ]


def _late_node(timing: Timing) -> list[Case]:
    slow_node = {**JOB, "node": "n2", "phase": "backward", "cause": "node"}
    whole_node = dict.fromkeys(_SLOW_NODE_RANKS, _ABOVE)
    slightly = dict.fromkeys(_SLOW_NODE_RANKS, _BELOW)

    def job(extra: _Extra, places: tuple[Placement, ...] = TWO_NODES) -> list[Samples]:
        return _straggling(timing, extra, places)

    served = [*job(whole_node), *_exchanges(timing, "independent")]
    return [
        Case("a node of slow workers of a parameter server", served),
        Case("all stages of a node late", job(whole_node, TWO_REPLICAS), slow_node),
        Case("a node less late than that", job(slightly)),
        Case("all ranks are alike", job({})),
    ]


def _exchanges(timing: Timing, exchange: str) -> list[Samples]:
    """Ranks that take over shared parameters once a second."""
    return [
        samples(training.SYNC_ROUNDS, timing.counts(1), rank=str(rank), exchange=exchange, **JOB)
        for rank in range(NUM_RANKS)
    ]


def _standstill(timing: Timing) -> Case:
    """One step of two minutes in which one rank stood and all others waited: no straggler."""
    seconds = timing.onset_seconds + _STANDSTILL_SECONDS + timing.fires_within_seconds
    stood = ranks_late(_STANDSTILL_SECONDS, {_LATE_RANK: {"data": float(_STANDSTILL_SECONDS)}})
    after = timing.fires_within_seconds
    # It catches up with the clock within a second.
    moves = (
        Stretch(timing.onset_seconds, 1),
        Stretch(_STANDSTILL_SECONDS, 0),
        Stretch(1, _STANDSTILL_SECONDS + 1),
        Stretch(after - 1, 1),
    )
    return Case(
        "one rank stood still for one step",
        [
            *present(seconds),
            *moving(*moves),
            *stepping(healthy(timing.onset_seconds), stood, healthy(after)),
        ],
        None,
        timing.onset_seconds + _STANDSTILL_SECONDS + 2 * timing.windows.scrape_seconds,
    )


def _straggling(timing: Timing, extra: _Extra, places: tuple[Placement, ...]) -> list[Samples]:
    """A job in which ranks spend ``extra`` seconds a step more from the onset on."""
    late = ranks_late(timing.fires_within_seconds, extra)
    return training_job(healthy(timing.onset_seconds), late, places=places)


_SLOW_STAGE = 2


@proves(StageUneven)
def stage_uneven(condition: StageUneven, timing: Timing) -> list[Case]:
    seconds = timing.fires_by_seconds

    def job(ratio: float) -> list[Samples]:
        extra = {_SLOW_STAGE: {"backward": _extra_seconds(ratio)}}
        return training_job(ranks_late(seconds, extra), places=STAGES)

    stage = {**JOB, "pp": str(_SLOW_STAGE), "phase": "backward"}
    return [
        Case("one stage has more work", job(1.1 * condition.above_ratio), stage, seconds),
        Case("by less than that", job(0.8 * condition.above_ratio), None, seconds),
    ]


def _slowed_stage(timing: Timing) -> list[Case]:
    extra = {_SLOW_STAGE: {"backward": _extra_seconds(1.2 * _LIMITS.late_stage_ratio)}}
    slowed = {**JOB, "pp": "2", "rank": "2", "node": "n1", "phase": "backward", "cause": "stage"}
    at = _history_seconds(timing) + timing.fires_within_seconds
    return [
        Case("one stage slows", _slowing(timing, {}, extra), slowed, at),
        Case("it was always heavier", _slowing(timing, extra, extra), None, at),
    ]


def _history_seconds(timing: Timing) -> int:
    """Long enough to have a usual work that a new one does not move."""
    return timing.onset_seconds + MIN_HISTORY_SECONDS + timing.fires_within_seconds


def _slowing(timing: Timing, before: _Extra, after: _Extra) -> list[Samples]:
    slowing = training_job(
        ranks_late(_history_seconds(timing), before),
        ranks_late(timing.fires_within_seconds, after),
        places=STAGES,
    )
    # Another job, whose stage has two ranks, must not spoil the join.
    seconds = _history_seconds(timing) + timing.fires_within_seconds
    other = {"instance": "n1:9400", **JOB, "job_id": "j2"}
    for rank in ("0", "1"):
        info = samples(
            training.RANK_INFO, steady(1, seconds), **other, node="n1", pp="0", rank=rank
        )
        moves = growing(Stretch(seconds, 1))
        slowing += [info, samples(training.LAST_PROGRESS, moves, **other, rank=rank)]
    return slowing


@proves(JobLosing)
def job_losing(condition: JobLosing, timing: Timing) -> list[Case]:
    """Its parts have cases of their own; here are the limits in GPUs."""
    late = {_LATE_RANK: {"backward": _extra_seconds(1.2 * condition.above_ratio)}}
    series = _straggling(timing, late, ONE_NODE)
    named = {**JOB, "node": "n1", "rank": str(_LATE_RANK), "phase": "backward", "cause": "rank"}
    large = on_many_gpus(timing.fires_by_seconds)
    less = _straggling(timing, {_LATE_RANK: {"backward": _extra_seconds(0.1)}}, ONE_NODE)
    half_an_hour = ranks_late(1800, late)
    lasting = training_job(healthy(timing.onset_seconds), half_an_hour, places=ONE_NODE)
    return [
        Case("a quarter of a large job", [*series, *large], {**named, **OWNER}),
        Case("a tenth of a large job", [*less, *large], {**named, **OWNER}),
        Case("a tenth of a small job", less),
        Case("a quarter of a small job for a minute", series),
        Case("a quarter of a small job for long", lasting, named, timing.onset_seconds + 1800),
    ]


@proves(JobNotProgressing)
def job_not_progressing(condition: JobNotProgressing, timing: Timing) -> list[Case]:
    def job(state: str, **first_by_node: str) -> list[Samples]:
        return _job(timing, first_by_node, state)

    return [
        Case("a rank hangs in its backward", job("training", n1="sync", n2="backward"), JOB),
        Case("a rank hangs in a checkpoint", job("checkpoint", n2="checkpoint"), JOB),
        Case("all wait, and none pauses", job("training", n1="sync", n2="sync"), JOB),
        Case("ranks wait for a checkpoint elsewhere", job("checkpoint", n1="sync")),
        Case("a checkpoint is written", job("checkpoint")),
        Case("it moves", job("training")),
        Case("a rank is behind by NCCL's word", _of_nccl(timing, "3"), JOB),
        Case("nothing is known but that it runs", _of_nccl(timing)),
        Case("its telemetry ends with its node", _ended(timing), JOB, _ENDED_SECONDS),
        Case("it ends before its node", _ended(timing, "done"), None, _ENDED_SECONDS),
        Case("it stands unjudged", _standing("unasked"), JOB, _ENDED_SECONDS),
        Case("its graphs replay unseen", _standing("unseen"), None, _ENDED_SECONDS),
    ]


def _of_nccl(timing: Timing, *behind: str) -> list[Samples]:
    """A job without pages, which has ranks and no progress; ranks of another node are behind."""
    seconds = timing.fires_by_seconds
    judged_seconds = timing.onset_seconds + round(HANG_TIMEOUT_SECONDS) + _JUDGED_EVERY_SECONDS
    age = Course(HANG_TIMEOUT_SECONDS, (Stretch(seconds, 1),), judged_seconds)
    named, because = steady(1, seconds, judged_seconds), "behind_in_launches_by_ras"
    series = [
        sample_node(agent.AGENT_INFO, steady(1, seconds), version="1"),
        sample_node(training.RANKS, steady(8, seconds), job_id="j1", state="training"),
    ]
    for rank in behind:
        series += [
            _hung(training.HANG_FIRST, age, "n1", "0", "unknown"),
            _hung(training.HANG_MISSING, named, "10.0.0.2", rank, "unknown", hang_evidence=because),
        ]
    return series


_ENDED_SECONDS, _LIVED_SECONDS = 1200, 600


def _ended(timing: Timing, state: str = "training") -> list[Samples]:
    """A job of one node, of which nothing is heard any more."""
    lived = steady(1, _LIVED_SECONDS)
    return [
        sample_node(agent.AGENT_INFO, lived, version="1"),
        sample_node(training.RANKS, lived, job_id="j1", state=state),
        sample_node(agent.AGENT_INFO, steady(1, _ENDED_SECONDS), "n9", version="1"),
    ]


def _standing(launches: str) -> list[Samples]:
    """A job that NCCL's plugin tells of, whose pages stand after a while."""
    stands = Stretch(_ENDED_SECONDS - _LIVED_SECONDS, 0)
    seen = samples(
        training.JOB_SEEN,
        steady(1, _ENDED_SECONDS),
        **ONE_NODE[0].labels,
        seen_by="plugin",
        launches=launches,
    )
    return [
        *present(_ENDED_SECONDS),
        *moving(Stretch(_LIVED_SECONDS, 1), stands),
        *stepping(healthy(_LIVED_SECONDS)),
        seen,
    ]


def _job(timing: Timing, first_by_node: dict[str, str], state: str) -> list[Samples]:
    """A job of two nodes; of each given node a rank hangs in a phase from the onset on."""
    judged_seconds = timing.onset_seconds + round(HANG_TIMEOUT_SECONDS) + _JUDGED_EVERY_SECONDS
    lasting = Stretch(timing.fires_by_seconds, 1)
    age = Course(HANG_TIMEOUT_SECONDS, (lasting,), judged_seconds)
    series = [*present(timing.fires_by_seconds, state, TWO_NODES), *moving(lasting)]
    for node, phase in first_by_node.items():
        rank = str([placement.node for placement in TWO_NODES].index(node))
        series.append(_hung(training.HANG_FIRST, age, node, rank, phase))
        if phase != "sync":
            present_now = steady(1, timing.fires_by_seconds, judged_seconds)
            because = {training.HANG_EVIDENCE.name: "outside_of_waits"}
            series.append(_hung(training.HANG_MISSING, present_now, node, rank, phase, **because))
    return series


def _hung(
    metric: Metric, course: Course, node: str, rank: str, phase: str, **because: str
) -> Samples:
    labels = {**JOB, "node": node, "rank": rank, "hang_phase": phase, **because}
    return samples(metric, course, instance=f"{node}:9400", **labels)
