from collections.abc import Mapping

from lockstep_alerts.conditions.attempts.attempts import (
    CrashLoop,
    FailedOnStart,
    MixedModels,
    OutOfMemoryLoop,
    TopologyWrong,
)
from lockstep_catalogue import gpu, training

from ..case import Case, proves
from ..synthetic import JOB, Course, Samples, Timing, sample_node, steady


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


@proves(OutOfMemoryLoop)
def out_of_memory_loop(condition: OutOfMemoryLoop, timing: Timing) -> list[Case]:
    again, once = condition.least_restarts + 1, 1

    def job(num_failed: int, num_restarts: int) -> list[Samples]:
        return [
            sample_node(training.OUT_OF_MEMORY, timing.steps_up(num_failed), job_id="j1"),
            sample_node(training.ATTEMPT_NUMBER, timing.steps_up(num_restarts), job_id="j1"),
        ]

    return [
        Case("memory runs out again and again", job(again, again), JOB),
        Case("memory runs out once", job(once, once)),
        Case("it restarts for another reason", job(0, again)),
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


@proves(MixedModels)
def mixed_models(condition: MixedModels, timing: Timing) -> list[Case]:
    def job(*models: str) -> list[Samples]:
        lasting, identity = (
            timing.steady(1),
            {"pci_bus_id": "", "mig_uuid": ""},
        )
        return [
            each
            for number, model in enumerate(models)
            for each in (
                sample_node(gpu.GPU_INFO, lasting, uuid=f"G{number}", model=model),
                sample_node(
                    gpu.GPU_OWNER_INFO, lasting, uuid=f"G{number}", job_id="j1", **identity
                ),
            )
        ]

    return [
        Case("two models", job("A100", "H100"), JOB),
        Case("one model", job("H100", "H100")),
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
