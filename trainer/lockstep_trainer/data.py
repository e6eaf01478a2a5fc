"""The text: sources of the Python standard library, cut into batches by seed, step and rank."""

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.mesh import Layout

Text: TypeAlias = NDArray[np.uint8]
Batch: TypeAlias = tuple[int, torch.Tensor, torch.Tensor]

_LIMIT_BYTES = 8_000_000
_HELD_OUT_RATIO = 0.03
_NOT_OURS = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """Real text, the end of it held out from training.

    Attributes:
        sha256: of the whole text, held-out part included.
    """

    train: Text
    held_out: Text
    sha256: str

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole text."""
        return len(self.train) + len(self.held_out)

    @property
    def unigram_entropy(self) -> float:
        """Entropy of the byte frequencies in nats: the loss of a model that only counts bytes."""
        counts = np.bincount(self.train, minlength=256) + np.bincount(self.held_out, minlength=256)
        share = counts[counts > 0] / counts.sum()
        return float(-(share * np.log(share)).sum())


def standard_library() -> Path:
    """Folder of the standard library of the running interpreter."""
    return Path(sysconfig.get_path("stdlib"))


def read_corpus(folder: Path, limit_bytes: int = _LIMIT_BYTES) -> Corpus:
    """The Python sources under a folder in the order of their names, up to ``limit_bytes``.

    Installed packages and tests are left out, so that one interpreter gives one text everywhere.

    Raises:
        ValueError: there is no Python source.
        OSError: a file cannot be read.
    """
    text = bytearray()
    for name in _sources(folder):
        text += (folder / name).read_bytes()
        if len(text) >= limit_bytes:
            break
    if not text:
        raise ValueError(
            f"corpus folder {folder} holds no Python source; "
            "use an interpreter with its standard library as files"
        )
    tokens = np.frombuffer(bytes(text[:limit_bytes]), np.uint8)
    cut = len(tokens) - int(len(tokens) * _HELD_OUT_RATIO)
    return Corpus(
        train=tokens[:cut],
        held_out=tokens[cut:],
        sha256=hashlib.sha256(tokens.tobytes()).hexdigest(),
    )


def _sources(folder: Path) -> list[str]:
    """Names of the sources under a folder, sorted; what is not ours is not even walked."""
    names = []
    for here, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _NOT_OURS]
        inside = Path(here).relative_to(folder)
        names += [(inside / name).as_posix() for name in files if name.endswith(".py")]
    return sorted(names)


@dataclass(frozen=True, kw_only=True, slots=True)
class Batches:
    """The batches of one data-parallel rank for steps ``first_step`` to ``last_step``.

    An epoch shuffles all windows of ``sequence`` bytes by the seed and deals them out to steps and
    ranks, so that a window is seen once an epoch by one rank, and a step's batch depends on
    nothing but its number: a resumed run lands on the exact sample.

    Args:
        rank: coordinate on the dp axis, below ``num_ranks``.
        batch: samples per rank and step.

    Raises:
        ValueError: the text is too short for one step.
    """

    text: Text
    sequence: int
    batch: int
    rank: int
    num_ranks: int
    seed: int
    first_step: int
    last_step: int

    def __post_init__(self) -> None:
        if self._steps_per_epoch < 1:
            raise ValueError(
                f"--batch {self.batch} and --sequence {self.sequence} on {self.num_ranks} ranks "
                f"need more than the {len(self.text)} bytes of text there are; lower one of them"
            )

    @property
    def _num_windows(self) -> int:
        # One sequence is kept free for the shift of the epoch, and one byte for the last target.
        return max(0, len(self.text) - 1 - self.sequence) // self.sequence

    @property
    def _steps_per_epoch(self) -> int:
        return self._num_windows // (self.batch * self.num_ranks)

    def __len__(self) -> int:
        return max(0, self.last_step - self.first_step + 1)

    def __iter__(self) -> Iterator[Batch]:
        """Step, inputs and targets; both int64 of shape (batch, sequence)."""
        starts, epoch_of_starts = np.empty(0, np.int64), -1
        for step in range(self.first_step, self.last_step + 1):
            epoch, in_epoch = divmod(step - 1, self._steps_per_epoch)
            if epoch != epoch_of_starts:
                starts, epoch_of_starts = self._shuffled(epoch), epoch
            first = (in_epoch * self.num_ranks + self.rank) * self.batch
            x, y = windows_at(self.text, starts[first : first + self.batch], self.sequence)
            yield step, x, y

    def _shuffled(self, epoch: int) -> NDArray[np.int64]:
        """Where the windows of an epoch begin, in their order."""
        random = np.random.default_rng([self.seed, epoch])
        shift = random.integers(self.sequence)
        return random.permutation(self._num_windows) * self.sequence + shift


def batches_of(
    config: TrainConfig, corpus: Corpus, layout: Layout, *, rank: int, done: int
) -> Batches:
    """The batches that a rank of a run still has to see after ``done`` steps.

    Raises:
        ValueError: the text is too short for one step.
    """
    return Batches(
        text=corpus.train,
        sequence=config.sequence,
        batch=config.batch,
        rank=layout.coordinates(rank)["dp"],
        num_ranks=layout.dp,
        seed=config.seed,
        first_step=done + 1,
        last_step=config.steps,
    )


def windows_at(
    text: Text, starts: NDArray[np.int64], sequence: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets, one byte ahead, of the windows that begin at ``starts``."""
    places = starts[:, None] + np.arange(sequence + 1)
    windows = torch.from_numpy(text[places].astype(np.int64))
    return windows[:, :-1], windows[:, 1:]
