"""What rank 0 tells people: progress lines on stderr, and the result at the end."""

import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.model import GPT
from lockstep_trainer.world import World


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """The result of a run.

    Attributes:
        loss: held-out loss after the last step in nats per byte; None when it is not a finite
            number.
        losses: held-out loss of every evaluation, by step.
        unigram_entropy: entropy of the corpus's byte frequencies in nats, which loss must beat.
        steps: of the whole run; ``resumed_from`` of them were done before.
        stopped_after: the step at which it left because it was told to; None when it did not.
        tokens_per_second: bytes trained on a second by all ranks, pauses included; None when no
            step was left to do.
        mfu_ratio: model FLOPs done over those that the devices could do; None where their peak was
            not told.
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
        """Writes it as JSON, beside and renamed."""
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        aside.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        aside.rename(path)


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What a job does in a step, and how fast its devices could be.

    Attributes:
        tokens_per_step: of all ranks together.
        peak_flops: FLOP/s of all devices together; None where it was not told.
    """

    parameters: int
    tokens_per_step: int
    flops_per_token: float
    peak_flops: float | None

    @classmethod
    def of(cls, gpt: GPT, config: TrainConfig, world: World, *, global_batch: int) -> "Work":
        """The work of a run; the model must still be whole."""
        return cls(
            parameters=sum(parameter.numel() for parameter in gpt.parameters()),
            tokens_per_step=global_batch * config.sequence,
            flops_per_token=gpt.flops_per_token(config.sequence),
            peak_flops=config.peak_flops and config.peak_flops * world.size,
        )

    def mfu_ratio(self, tokens_per_second: float) -> float | None:
        """Model FLOPs utilisation at a speed; None where the peak was not told."""
        return self.peak_flops and tokens_per_second * self.flops_per_token / self.peak_flops


class Progress:
    """Counts tokens against the clock and speaks for rank 0; the other ranks are silent.

    Args:
        log_every: steps between two lines; 0 for none.
    """

    def __init__(
        self,
        world: World,
        work: Work,
        *,
        log_every: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._speaks = world.rank == 0
        self._log_every, self._work, self._clock = log_every, work, clock
        self._began = self._last = clock()
        self._steps = 0

    def say(self, line: str) -> None:
        """One line to stderr, from rank 0."""
        if self._speaks:
            sys.stderr.write(f"lockstep: {line}\n")
            sys.stderr.flush()

    def start(self) -> None:
        """Begins to count: what came before was no training."""
        self._began = self._last = self._clock()

    def step(self, step: int, loss: Callable[[], float]) -> None:
        """Counts a step; ``loss`` is asked, and a GPU waited for, only when a line is due."""
        self._steps += 1
        if self._log_every and step % self._log_every == 0:
            now = self._clock()
            speed = self._work.tokens_per_step * self._log_every / max(now - self._last, 1e-9)
            mfu = self._work.mfu_ratio(speed)
            used = "" if mfu is None else f" MFU {mfu:.1%}"
            self.say(f"step {step} loss {loss():.4f} tokens/s {speed:.0f}{used}")
            self._last = now

    @property
    def tokens_per_second(self) -> float | None:
        """Over the whole run so far; None before the first step."""
        passed = self._clock() - self._began
        return self._steps * self._work.tokens_per_step / passed if self._steps and passed else None

    @property
    def mfu_ratio(self) -> float | None:
        """Over the whole run so far; None before the first step and where no peak was told."""
        speed = self.tokens_per_second
        return None if speed is None else self._work.mfu_ratio(speed)


def finite(value: float | None) -> float | None:
    """The value, or None where there is none or it is no finite number."""
    return value if value is not None and math.isfinite(value) else None
