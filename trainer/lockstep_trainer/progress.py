"""Rank 0's output for people: progress lines on stderr, and the result at the end."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from lockstep_records.file_access.atomic_file import write_atomically
from lockstep_trainer.config import TrainConfig
from lockstep_trainer.data.shards import say_on_stderr
from lockstep_trainer.layout.world import World
from lockstep_trainer.model.gpt import GPT


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """The result of a run; losses in nats a byte by step, tokens of all ranks a second.

    Attributes:
        loss: after the last step; None when it is not a finite number.
        unigram_entropy: entropy of the corpus's byte frequencies in nats, which loss must beat.
        steps: of the whole run; ``resumed_from`` of them were done before a resume.
        stopped_after: the step after which a request to stop ended the run; None otherwise.
        tokens_per_second: pauses included; None when no step was left to do.
        mfu_ratio: model FLOPs over peak FLOPs of the devices; None without --peak-flops.
    """

    loss: float | None
    losses: dict[str, float | None]
    unigram_entropy: float
    steps: int
    stopped_after: int | None
    resumed_from: int
    ranks: int
    parameters: int
    corpus_bytes: int
    corpus_sha256: str
    global_batch: int
    tokens_per_second: float | None
    mfu_ratio: float | None

    def write(self, path: Path) -> None:
        """Writes the result as JSON in one move."""
        write_atomically(path, json.dumps(asdict(self), indent=2) + "\n")


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """The work of a job in one step, of all ranks, and the FLOP/s of all devices, where given."""

    parameters: int
    tokens_per_step: int
    flops_per_token: float
    peak_flops: float | None

    @classmethod
    def of(cls, gpt: GPT, config: TrainConfig, world: World, *, global_batch: int) -> "Work":
        """The work of a run; the model must not be parallelised yet."""
        return cls(
            parameters=sum(parameter.numel() for parameter in gpt.parameters()),
            tokens_per_step=global_batch * config.sequence,
            flops_per_token=gpt.flops_per_token(config.sequence),
            peak_flops=config.peak_flops and config.peak_flops * world.size,
        )

    def mfu_ratio(self, tokens_per_second: float) -> float | None:
        """Model FLOPs utilisation at a speed; None without --peak-flops."""
        return self.peak_flops and tokens_per_second * self.flops_per_token / self.peak_flops


class Progress:
    """Counts tokens against the clock; rank 0 writes a line each ``log_every`` steps, if not 0."""

    def __init__(
        self,
        world: World,
        work: Work,
        *,
        log_every: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_writer = world.rank == 0
        self._log_every, self._work, self._clock = log_every, work, clock
        self._start = self._last = clock()
        self._steps = 0

    def say(self, line: str) -> None:
        """Writes one line to stderr, on rank 0."""
        if self._is_writer:
            say_on_stderr(line)

    def start(self) -> None:
        """Starts the clock: the time before was set-up, not training."""
        self._start = self._last = self._clock()

    def step(self, step: int, loss: Callable[[], float]) -> None:
        """Counts a step; calls ``loss``, which waits for the GPU, only when a line is due."""
        self._steps += 1
        if self._log_every and step % self._log_every == 0:
            now = self._clock()
            # A clock may not have moved between two lines of a tiny model.
            speed = self._work.tokens_per_step * self._log_every / max(now - self._last, 1e-9)
            mfu = self._work.mfu_ratio(speed)
            mfu_text = "" if mfu is None else f" MFU {mfu:.1%}"
            self.say(f"step {step} loss {loss():.4f} tokens/s {speed:.0f}{mfu_text}")
            self._last = now

    @property
    def tokens_per_second(self) -> float | None:
        """Mean speed since ``start``; None before the first step."""
        seconds = self._clock() - self._start
        num_tokens = self._steps * self._work.tokens_per_step
        return num_tokens / seconds if num_tokens and seconds else None

    @property
    def mfu_ratio(self) -> float | None:
        """Mean MFU since ``start``; None before the first step and without --peak-flops."""
        speed = self.tokens_per_second
        return None if speed is None else self._work.mfu_ratio(speed)


def finite(value: float | None) -> float | None:
    """The value, or None where it is missing or not finite."""
    return value if value is not None and math.isfinite(value) else None
