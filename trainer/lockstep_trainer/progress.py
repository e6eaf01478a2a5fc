"""What rank 0 tells people: progress lines on stderr, and the result at the end."""

import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from lockstep_trainer.world import World


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """The result of a run.

    Attributes:
        loss: held-out loss in nats per byte; None when it is not a finite number.
        unigram_entropy: entropy of the corpus's byte frequencies in nats, which loss must beat.
        steps: of the whole run; ``resumed_from`` of them were done before.
        tokens_per_second: bytes trained on a second by all ranks, pauses included; None when no
            step was left to do.
    """

    loss: float | None
    unigram_entropy: float
    steps: int
    resumed_from: int
    ranks: int
    parameters: int
    corpus_bytes: int
    corpus_sha256: str
    tokens_per_second: float | None

    def write(self, path: Path) -> None:
        """Writes it as JSON, beside and renamed."""
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        aside.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        aside.rename(path)


class Progress:
    """Counts tokens against the clock and speaks for rank 0; the other ranks are silent.

    Args:
        log_every: steps between two lines; 0 for none.
        tokens_per_step: of all ranks together.
    """

    def __init__(
        self,
        world: World,
        *,
        log_every: int,
        tokens_per_step: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._speaks = world.rank == 0
        self._log_every, self._tokens_per_step, self._clock = log_every, tokens_per_step, clock
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
            speed = self._tokens_per_step * self._log_every / max(now - self._last, 1e-9)
            self.say(f"step {step} loss {loss():.4f} tokens/s {speed:.0f}")
            self._last = now

    @property
    def tokens_per_second(self) -> float | None:
        """Over the whole run so far; None before the first step."""
        passed = self._clock() - self._began
        return self._steps * self._tokens_per_step / passed if self._steps and passed else None


def finite(value: float) -> float | None:
    """The value, or None where it is no finite number."""
    return value if math.isfinite(value) else None
