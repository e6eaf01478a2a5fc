"""Stragglers on simulated devices: a delay of the host costs nobody while the device hides it."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import numpy as np
import pytest
from simulated_device import Call, Collective, HostWork, Join, Kernel, Phase, SimulatedDevices

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_reports.analysis.steps import analyse

from ..synthetic_job import Array, SyntheticJob, recording_of

_FROM_STEP = 40


@dataclass(frozen=True, kw_only=True)
class DeviceJob(SyntheticJob):
    """Ranks that train at 40 ms a step on their devices and launch far ahead of them.

    Attributes:
        host_seconds: by which the host of rank 1 works longer in each step from the 40th on.
        kernel_ratio: of the kernels of its backward from then on.
    """

    num_steps: int = 120
    host_seconds: float = 0.0
    kernel_ratio: float = 1.0

    def phases(self) -> dict[str, Array]:
        """What the devices went through."""
        ranks = SimulatedDevices(self.program, {"world": tuple(range(self.ranks))}).run()
        shape = (self.ranks, self.num_steps)
        phases = {phase: np.zeros(shape) for phase in STEP_PHASES}
        for number, rank in ranks.items():
            for step, phase, seconds in rank.device_seconds():
                phases[phase][number, step] += seconds
        return phases

    def program(self, rank: int) -> Iterator[Call]:
        """The calls of one rank's host."""
        draw = Random(rank)
        for step in range(self.num_steps):
            is_slow = rank == 1 and step >= _FROM_STEP
            yield Phase("data", step)
            yield HostWork(1e-3 + self.host_seconds * is_slow)
            yield Phase("forward", step)
            yield from (Kernel(1e-3 * draw.uniform(0.99, 1.01)) for _ in range(12))
            yield Phase("backward", step)
            ratio = self.kernel_ratio if is_slow else 1.0
            for _ in range(4):
                yield from (Kernel(1e-3 * ratio * draw.uniform(0.99, 1.01)) for _ in range(6))
                yield Collective("world", "all_reduce", 5e-4)
            yield Join("world")
            yield Phase("optimizer", step)
            yield Kernel(3e-3)
            yield Phase("other", step)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(
    ("host_seconds", "kernel_ratio", "named"),
    [(0.0, 1.0, ()), (0.03, 1.0, ()), (0.09, 1.0, (1,)), (0.0, 1.5, (1,))],
)
def test_who_is_slow_is_judged_by_the_devices(
    ranks: int, host_seconds: float, kernel_ratio: float, named: tuple[int, ...]
) -> None:
    job = DeviceJob(ranks=ranks, host_seconds=host_seconds, kernel_ratio=kernel_ratio)
    analysis = analyse(recording_of(job.steps()))
    assert analysis.verdict.ranks == named
    for episode in analysis.episodes:
        assert abs(episode.start_step - _FROM_STEP) <= 30
