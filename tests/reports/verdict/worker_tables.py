"""Makes tables of workers' own step times whose truth is known: healthy noise, and faults in it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_BURN_IN = 200


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A worker that takes ``factor`` times as long, in all steps of a stretch or in each n-th."""

    worker: int
    first: int
    steps: int
    factor: float
    every: int = 1


@dataclass(frozen=True, kw_only=True)
class WorkerTable:
    """Step times of workers about 1 s.

    Attributes:
        noise: ``normal``, ``t3`` (Student, three degrees of freedom), ``lognormal``, or
            ``hiccups``: normal, and in one of 400 steps a pause of one to eight steps begins.
        correlation: of the noise of a step with that of the next one.
        deviation: of the noise, relative.
        levels: deviation of the workers' usual times, relative.
        common: deviation of what all workers take longer together.
    """

    workers: int = 10
    num_steps: int = 250
    noise: str = "normal"
    correlation: float = 0.6
    deviation: float = 0.02
    levels: float = 0.05
    common: float = 0.02
    faults: tuple[Fault, ...] = ()
    seed: int = 0

    def seconds(self) -> Array:
        """Step times in seconds [workers, steps]."""
        draw = np.random.default_rng(self.seed)
        logs = self.deviation * self._noise(draw, self.workers, self.noise)
        logs += draw.normal(0, self.levels, (self.workers, 1))
        logs += self.common * self._noise(draw, 1, "normal")
        if self.noise == "hiccups":
            self._add_hiccups(draw, logs)
        for fault in self.faults:
            columns = slice(fault.first, fault.first + fault.steps, fault.every)
            logs[fault.worker, columns] += np.log(fault.factor)
        return np.exp(logs)

    def _noise(self, draw: np.random.Generator, rows: int, kind: str) -> Array:
        """First-order autoregression of variance 1 [rows, steps]."""
        shape = (rows, self.num_steps + _BURN_IN)
        if kind == "t3":
            values = draw.standard_t(3, shape) / np.sqrt(3)
        elif kind == "lognormal":
            values = (draw.lognormal(0, 1, shape) - np.exp(0.5)) / np.sqrt((np.e - 1) * np.e)
        else:
            values = draw.standard_normal(shape)
        rest = np.sqrt(1 - self.correlation**2)
        for step in range(1, shape[1]):
            values[:, step] = self.correlation * values[:, step - 1] + rest * values[:, step]
        recorded: Array = values[:, _BURN_IN:]
        return recorded

    def _add_hiccups(self, draw: np.random.Generator, logs: Array) -> None:
        for _ in range(max(1, logs.size // 400)):
            length = int(draw.integers(1, 9))
            begin = int(draw.integers(0, logs.shape[1] - length))
            worker = int(draw.integers(len(logs)))
            logs[worker, begin : begin + length] += np.log(draw.uniform(1.2, 3))
