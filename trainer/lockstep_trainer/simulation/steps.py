"""The steps of a simulated job, all ranks at once: who computes how long, and who waits for whom.

Each step has one collective of all ranks, as the norm of the gradients is in every strategy: no
rank leaves it before the last one has arrived and the transfer is over. What comes after it, the
optimizer and the way to the next step, each rank does at its own pace.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_trainer.simulation.spec import SHARES, SLOW_PHASES, Simulation

Seconds = NDArray[np.float64]

# Two lone spikes of MLPerf runs, as multiples of the usual step, taken as the lowest and the
# median; and the highest of a long run of NVIDIA's, which bounds the tail.
_LEAST_SPIKE, _MEDIAN_SPIKE, _MOST_SPIKE = 1.36, 2.09, 9.8
_TAIL_EXPONENT = math.log(2) / math.log(_MEDIAN_SPIKE / _LEAST_SPIKE)
# The first bucket of gradients is full after this much of the backward: a guess.
_FIRST_BUCKET = 0.2
# The loss of language models over their data falls as a power towards a floor.
_LOSS_FLOOR, _LOSS_DROP, _LOSS_POWER = 1.69, 9.0, 0.3


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SimulatedStep:
    """One step of all ranks. Arrays are [ranks], times in seconds since the job began.

    Attributes:
        number: of the step, from 1.
        phases: seconds by phase [ranks x STEP_PHASES], to the precision of a page's row.
        seconds: duration, to the same precision.
        together: when all ranks leave the collective.
        end: when the last rank is through.
    """

    number: int
    start: Seconds
    first_arrival: Seconds
    last_arrival: Seconds
    phases: Seconds
    seconds: Seconds
    together: float
    end: float
    loss: float


def simulated_steps(simulation: Simulation) -> Iterator[SimulatedStep]:
    """The steps of a simulation, one after another; the same seed gives the same steps."""
    random = np.random.default_rng(simulation.seed)
    uneven = np.exp(random.normal(0.0, simulation.unevenness, simulation.ranks))
    start, slow = np.zeros(simulation.ranks), simulation.slow_ranks
    for number in range(1, simulation.steps + 1):
        work = _work(simulation, uneven * _noise(simulation, random))
        if simulation.is_slow_at(number):
            _slow_down(work, simulation, slow)
        work = {phase: _as_in_a_row(seconds) for phase, seconds in work.items()}
        last_arrival = start + work["data"] + work["forward"] + work["backward"]
        together = float(last_arrival.max() + work["sync"][0])
        work["sync"] = _as_in_a_row(together - last_arrival)
        nothing = np.zeros(simulation.ranks)
        phases = np.stack([work.get(phase, nothing) for phase in STEP_PHASES], axis=1)
        through = together + work["optimizer"] + work["other"]
        yield SimulatedStep(
            number=number,
            start=start,
            first_arrival=last_arrival - (1 - _FIRST_BUCKET) * work["backward"],
            last_arrival=last_arrival,
            phases=phases,
            seconds=_as_in_a_row(phases.sum(axis=1)),
            together=together,
            end=float(through.max()),
            loss=_LOSS_FLOOR + _LOSS_DROP * number**-_LOSS_POWER,
        )
        start = through


def _noise(simulation: Simulation, random: np.random.Generator) -> Seconds:
    """How much longer than usual each rank works in a step, as a factor."""
    noise = np.exp(random.normal(0.0, simulation.jitter, simulation.ranks))
    spikes = _LEAST_SPIKE * (1 + random.pareto(_TAIL_EXPONENT, simulation.ranks))
    spiky = random.random(simulation.ranks) < simulation.tail
    factors: Seconds = np.where(spiky, np.minimum(spikes, _MOST_SPIKE), noise)
    return factors


def _work(simulation: Simulation, factor: Seconds) -> dict[str, Seconds]:
    """Seconds of each rank by phase; sync is the transfer alone."""
    usual = {phase: share * simulation.step_seconds for phase, share in SHARES.items()}
    work = {phase: seconds * factor for phase, seconds in usual.items()}
    return work | {"sync": np.full(simulation.ranks, usual["sync"])}


def _slow_down(work: dict[str, Seconds], simulation: Simulation, ranks: list[int]) -> None:
    phase = SLOW_PHASES[simulation.slow_phase]
    who = slice(None) if phase == "sync" else ranks
    work[phase][who] *= simulation.slow_factor or 1.0
    work[phase][who] += (simulation.slow_ms or 0.0) / 1000


def _as_in_a_row(seconds: Seconds) -> Seconds:
    """Rounded to what a row of a page can hold, so that totals and rows say the same."""
    return seconds.astype(np.float32).astype(np.float64)
