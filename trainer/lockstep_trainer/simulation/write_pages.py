"""Writes the pages of a simulated job: real pages by the real writer, thousands of ranks at once.

The times in pages and events are those of the simulation and begin at its start. With ``--speed
fast`` they run ahead of the clock; everything else is as in a real job.
"""

import math
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_records.events.event import Event, append_event
from lockstep_records.files.jobs import job_folder, page_path
from lockstep_records.page.layout import PHASES, SLOT, page_bytes
from lockstep_records.page.writer import NoPageError, PageWriter, RankIdentity
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
        sync_end, end: when all ranks leave the collective, and when the last ends the step.
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


# Bytes of one all-reduce of the gradients of a model with 1e9 parameters of two bytes.
_GRADIENT_BYTES = 2 * 10**9
_POLL_SECONDS = 0.05
_DATA, _SYNC, _DONE = (PHASES.index(phase) for phase in ("data", "sync", "done"))
_PHASE_SECONDS = SLOT.word("phase_seconds") + PHASES.index(STEP_PHASES[0])
_SYNC_INDEX = STEP_PHASES.index("sync")
_SLOT_PRESENT = SLOT.presence["step"] | SLOT.presence["loss"]
_PRESENT, _LOSS = SLOT.word("present"), SLOT.word("loss")


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationResult:
    """Result of a simulation.

    Attributes:
        busy_seconds: time spent computing and writing steps, without waits for the clock.
        max_lateness_seconds: largest delay between the end of a step and the end of its writing.
    """

    folder: Path
    rank_steps: int
    busy_seconds: float
    max_lateness_seconds: float
    exit_code: int

    @property
    def rank_steps_per_second(self) -> float:
        """Rows of one rank and step written per second of work; 0 when none was written."""
        return self.rank_steps / self.busy_seconds if self.rank_steps else 0.0


def simulate(
    simulation: Simulation,
    *,
    root: Path,
    job_id: str,
    cluster: str = "local",
    project: str = "",
    clock_ns: Callable[[], int] = time.monotonic_ns,
    sleep: Callable[[float], None] = time.sleep,
) -> SimulationResult:
    """Runs a simulation to its end, or until it is interrupted.

    Raises ValueError where the job id is in use, or memory is too small; no file is left then.
    """
    folder = job_folder(root, job_id)
    if folder.exists():
        raise ValueError(f"job id {job_id!r} is in use under {root}/jobs; choose another")
    _check_free_memory(simulation, root)
    identities = list_identities(simulation, job_id, cluster, project)
    writers = _create_pages(root, folder, identities, simulation.rows)
    return _Run(simulation, folder, writers, clock_ns, sleep).run()


def _create_pages(
    root: Path, folder: Path, identities: Iterable[RankIdentity], rows: int
) -> list[PageWriter]:
    try:
        return [
            # A lock takes a descriptor, of which a process may not have thousands.
            PageWriter(
                page_path(root, identity.job_id, 0, identity.rank), identity, rows, locks=False
            )
            for identity in identities
        ]
    except NoPageError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise ValueError(str(error)) from error
    # Thousands of pages take seconds to create, in which a user may interrupt.
    except (ValueError, KeyboardInterrupt):
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _check_free_memory(simulation: Simulation, root: Path) -> None:
    # The root may not exist yet; its nearest parent is on the same file system.
    nearest = next(path for path in (root, *root.absolute().parents) if path.is_dir())
    status = os.statvfs(nearest)
    needed, free = simulation.ranks * page_bytes(simulation.rows), status.f_bavail * status.f_frsize
    if needed > free:
        raise ValueError(
            f"--ranks {simulation.ranks} with --rows {simulation.rows} take {needed} bytes and "
            f"{nearest} has {free} free; lower one of them or give another --dir"
        )


def list_identities(
    simulation: Simulation, job_id: str, cluster: str, project: str
) -> Iterator[RankIdentity]:
    """The ranks of a simulated job."""
    mesh = simulation.mesh
    for rank, node in enumerate(simulation.nodes):
        yield RankIdentity(
            job_id=job_id,
            rank=rank,
            world_size=simulation.ranks,
            local_rank=rank % simulation.ranks_per_node,
            cluster=cluster,
            project=project,
            node=node,
            mesh=tuple(mesh.coordinates(rank).items()),
        )


class _Run:
    def __init__(
        self,
        simulation: Simulation,
        folder: Path,
        writers: list[PageWriter],
        clock_ns: Callable[[], int],
        sleep: Callable[[float], None],
    ) -> None:
        self._simulation, self._folder, self._writers = simulation, folder, writers
        self._clock_ns, self._sleep = clock_ns, sleep
        self._totals = np.zeros((simulation.ranks, len(STEP_PHASES)))
        self._start_ns, self._start_wall = clock_ns(), time.time()
        self._steps, self._end = 0, 0.0
        self._waited, self._max_lateness = 0.0, 0.0

    def run(self) -> SimulationResult:
        """Writes all steps and returns the result."""
        self._append_events(
            "job_started",
            "attempt_started",
            self._start_wall,
            nproc_per_node=self._simulation.ranks_per_node,
        )
        for writer in self._writers:
            writer.heartbeat(self._start_ns, _DATA)
        outcome, exit_code = "succeeded", 0
        try:
            for step in simulate_steps(self._simulation):
                self._wait_through(step)
                self._write(step)
                self._account(step)
        except KeyboardInterrupt:
            outcome, exit_code = "cancelled", 130
        busy_seconds = self._now() - self._waited
        self._close()
        self._append_events(
            "attempt_ended",
            "job_finished",
            self._start_wall + self._end,
            outcome=outcome,
            exit_code=exit_code,
        )
        return SimulationResult(
            folder=self._folder,
            rank_steps=self._steps * self._simulation.ranks,
            busy_seconds=busy_seconds,
            max_lateness_seconds=self._max_lateness,
            exit_code=exit_code,
        )

    def _append_events(
        self, first_kind: str, second_kind: str, wall_seconds: float, **fields: object
    ) -> None:
        job_id = self._writers[0].identity.job_id
        for kind in (first_kind, second_kind):
            event = Event(kind=kind, job_id=job_id, attempt=0, fields=fields, time=wall_seconds)
            append_event(self._folder, event)

    def _account(self, step: SimulatedStep) -> None:
        self._steps, self._end = step.number, step.end
        if self._simulation.speed == "wall-clock":
            self._max_lateness = max(self._max_lateness, self._now() - step.end)

    def _now(self) -> float:
        return (self._clock_ns() - self._start_ns) / 1e9

    def _wait_through(self, step: SimulatedStep) -> None:
        """At wall-clock speed: writes heartbeats of ranks that arrive, until the step ends."""
        if self._simulation.speed != "wall-clock":
            return
        # Sorted once, so that each poll handles only the ranks that arrived since the last one.
        order = np.argsort(step.last_arrival)
        arrivals, num_arrived = step.last_arrival[order], 0
        while (now := self._now()) < step.end:
            arrived = int(np.searchsorted(arrivals, min(now, step.sync_end), side="right"))
            for rank in order[num_arrived:arrived].tolist():
                self._writers[rank].heartbeat(self._ns(float(step.last_arrival[rank])), _SYNC)
            num_arrived = arrived
            sleep_start = self._now()
            self._sleep(min(_POLL_SECONDS, max(0.0, step.end - sleep_start)))
            self._waited += self._now() - sleep_start

    def _ns(self, seconds: float) -> int:
        return self._start_ns + round(seconds * 1e9)

    def _all_ns(self, seconds: Seconds) -> list[int]:
        nanoseconds: list[int] = (self._start_ns + np.rint(seconds * 1e9).astype(np.int64)).tolist()
        return nanoseconds

    def _write(self, step: SimulatedStep) -> None:
        # The only loop over ranks: thousands of ranks a step leave no time for a call per field.
        self._totals += step.phases
        simulation, loss = self._simulation, float(np.float32(step.loss))
        ends = self._all_ns(step.start + step.seconds)
        moments = (step.start, step.first_arrival, step.last_arrival)
        states = zip(
            self._writers,
            *map(self._all_ns, moments),
            step.seconds.tolist(),
            step.phases.tolist(),
            (totals.data for totals in self._totals),
            ends,
            strict=True,
        )
        for writer, start_ns, first_ns, last_ns, seconds, phases, totals, end_ns in states:
            writer.count_step(step.number, seconds, simulation.tokens, simulation.samples)
            writer.append(
                step=step.number,
                start_ns=start_ns,
                seconds=seconds,
                phase_seconds=phases,
                first_arrival_ns=first_ns,
                last_arrival_ns=last_ns,
                loss=loss,
                tokens=simulation.tokens,
                samples=simulation.samples,
            )
            writer.count_collective("all_reduce", 1, _GRADIENT_BYTES, phases[_SYNC_INDEX])
            writer.floats[_PHASE_SECONDS : _PHASE_SECONDS + len(totals)] = totals
            writer.words[_PRESENT], writer.floats[_LOSS] = _SLOT_PRESENT, loss
            writer.commit(end_ns)
            writer.heartbeat(end_ns, _DATA)

    def _close(self) -> None:
        end_ns = self._ns(self._end)
        for writer in self._writers:
            writer.commit(end_ns)
            writer.heartbeat(end_ns, _DONE)
            writer.close()
