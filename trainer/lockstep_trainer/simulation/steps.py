"""The steps of a simulated job, all ranks at once: computation per rank, and waits between ranks.

Each step has one collective of all ranks, as the gradient norm is in every strategy: no rank leaves
it before the last rank has arrived and the transfer is over. The optimizer and the time up to the
next step follow, at each rank's own pace.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_trainer.simulation.spec import SHARES, SimulatedFault, Simulation

Seconds = NDArray[np.float64]

# Spikes as multiples of the usual step. The single spikes of two MLPerf runs are taken as the
# lowest and the median; the highest spike of a long NVIDIA run bounds the tail.
_MIN_SPIKE, _MEDIAN_SPIKE, _MAX_SPIKE = 1.36, 2.09, 9.8
# The exponent of the Pareto distribution with that minimum and median.
_TAIL_EXPONENT = math.log(2) / math.log(_MEDIAN_SPIKE / _MIN_SPIKE)
# The first bucket of gradients is full after this fraction of the backward: a guess.
_FIRST_BUCKET = 0.2
# The loss of language models falls as a power of the data towards a floor.
_LOSS_FLOOR, _LOSS_DROP, _LOSS_POWER = 1.69, 9.0, 0.3


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SimulatedStep:
    """One step of all ranks. Arrays are [ranks]; times are seconds since the start of the job.

    Attributes:
        phases: seconds by phase, [ranks, STEP_PHASES], rounded to the precision of a page's row.
        seconds: duration of the step, rounded alike.
        sync_end: moment at which all ranks leave the collective.
        end: moment at which the last rank ends the step.
        loss: in nats.
    """

    number: int
    start: Seconds
    first_arrival: Seconds
    last_arrival: Seconds
    phases: Seconds
    seconds: Seconds
    sync_end: float
    end: float
    loss: float


def simulate_steps(simulation: Simulation) -> Iterator[SimulatedStep]:
    """The steps of a simulation in order; the same seed gives the same steps."""
    random = np.random.default_rng(simulation.seed)
    # Drawn once for the whole job: a rank keeps its speed.
    uneven = np.exp(random.normal(0.0, simulation.unevenness, simulation.ranks))
    start, faults = np.zeros(simulation.ranks), simulation.faults
    for number in range(1, simulation.steps + 1):
        work = _work(simulation, uneven * _noise(simulation, random))
        for fault in faults:
            if fault.is_due(number):
                _slow_down(work, fault)
        work = {phase: _round_to_row(seconds) for phase, seconds in work.items()}
        last_arrival = start + work["data"] + work["forward"] + work["backward"]
        sync_end = float(last_arrival.max() + work["sync"][0])
        work["sync"] = _round_to_row(sync_end - last_arrival)
        zeros = np.zeros(simulation.ranks)
        phases = np.stack([work.get(phase, zeros) for phase in STEP_PHASES], axis=1)
        step_end = sync_end + work["optimizer"] + work["other"]
        yield SimulatedStep(
            number=number,
            start=start,
            first_arrival=last_arrival - (1 - _FIRST_BUCKET) * work["backward"],
            last_arrival=last_arrival,
            phases=phases,
            seconds=_round_to_row(phases.sum(axis=1)),
            sync_end=sync_end,
            end=float(step_end.max()),
            loss=_LOSS_FLOOR + _LOSS_DROP * number**-_LOSS_POWER,
        )
        start = step_end


def _noise(simulation: Simulation, random: np.random.Generator) -> Seconds:
    """Work of each rank in one step relative to its usual work, [ranks]."""
    noise = np.exp(random.normal(0.0, simulation.jitter, simulation.ranks))
    spikes = _MIN_SPIKE * (1 + random.pareto(_TAIL_EXPONENT, simulation.ranks))
    spiky = random.random(simulation.ranks) < simulation.tail
    factors: Seconds = np.where(spiky, np.minimum(spikes, _MAX_SPIKE), noise)
    return factors


def _work(simulation: Simulation, factor: Seconds) -> dict[str, Seconds]:
    """Seconds of each rank by phase, [ranks]; sync is the transfer alone."""
    usual = {phase: share * simulation.step_time for phase, share in SHARES.items()}
    work = {phase: seconds * factor for phase, seconds in usual.items()}
    return work | {"sync": np.full(simulation.ranks, usual["sync"])}


def _slow_down(work: dict[str, Seconds], fault: SimulatedFault) -> None:
    # A slow network delays the collective, and so all ranks, whoever has the fault.
    ranks = slice(None) if fault.phase == "sync" else list(fault.ranks)
    work[fault.phase][ranks] *= fault.factor
    work[fault.phase][ranks] += fault.delay_seconds


def _round_to_row(seconds: Seconds) -> Seconds:
    """Rounds to the float32 of a page's row, so that totals are the exact sums of rows."""
    return seconds.astype(np.float32).astype(np.float64)
