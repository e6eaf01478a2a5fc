"""Batches: windows of the text, assigned by seed, step and data-parallel rank."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.data.shards import Corpus, Text
from lockstep_trainer.layout.world import Layout
from lockstep_trainer.model.gpt import VOCABULARY

_ROUNDS = 6
_Words = NDArray[np.uint64]
# The constants of SplitMix64's finaliser.
_SHIFTS = tuple(np.uint64(shift) for shift in (30, 27, 31))
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def shuffled(indices: NDArray[np.int64], size: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """New positions of some of the indices 0 to ``size`` - 1 after a shuffle of all of them.

    A Feistel network permutes the next power of four; each epoch has an order of its own. An index
    that lands beyond the size goes through the network again until it lands inside (cycle walking),
    which keeps it a permutation.
    """
    # Both halves of a word have the same number of bits, hence the power of four.
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    keys = np.random.SeedSequence([seed, epoch]).generate_state(_ROUNDS, np.uint64)
    positions = indices.astype(np.uint64)
    outside = np.ones(positions.shape, np.bool_)
    # At most three of four indices are outside, so few passes are needed.
    while outside.any():
        positions[outside] = _permuted(positions[outside], np.uint64(half), keys.astype(np.uint64))
        outside = positions >= size
    return positions.astype(np.int64)


def _permuted(words: _Words, half: np.uint64, keys: _Words) -> _Words:
    """One pass of the network over words of twice ``half`` bits."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = words >> half, words & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right ^ key) & mask)
    return left << half | right


def _mixed(words: _Words) -> _Words:
    """SplitMix64's finaliser: every input bit affects every output bit."""
    words = (words ^ (words >> _SHIFTS[0])) * _FACTORS[0]
    words = (words ^ (words >> _SHIFTS[1])) * _FACTORS[1]
    return words ^ (words >> _SHIFTS[2])


Batch: TypeAlias = tuple[int, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Batches:
    """The batches of one data-parallel rank for steps ``first_step`` to ``last_step``.

    An epoch shuffles all windows of ``sequence`` tokens by the seed and assigns them to steps and
    ranks. Each window is used once an epoch, by one rank. A step's batch depends on its number
    alone, so that a resumed run continues at the exact sample. A text that is too short for one
    step is a ValueError.
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
        # The incomplete step at the end of an epoch is dropped, so an epoch needs one full step.
        if self._steps_per_epoch < 1:
            raise ValueError(
                f"--batch {self.batch} and --sequence {self.sequence} on {self.num_ranks} ranks "
                f"need more than the {len(self.text)} tokens of text there are; lower one of them"
            )

    @property
    def _num_windows(self) -> int:
        # One sequence is reserved for the random shift of the epoch, one token for the last target.
        return max(0, len(self.text) - 1 - self.sequence) // self.sequence

    @property
    def _steps_per_epoch(self) -> int:
        return self._num_windows // (self.batch * self.num_ranks)

    def __len__(self) -> int:
        return max(0, self.last_step - self.first_step + 1)

    def __iter__(self) -> Iterator[Batch]:
        """Step, inputs and targets; both int64, [batch, sequence]."""
        for step in range(self.first_step, self.last_step + 1):
            x, y = windows_at(self.text, self.starts_at(step), self.sequence)
            yield step, x, y

    def starts_at(self, step: int) -> NDArray[np.int64]:
        """Index in the text at which each window of a step begins, [batch]."""
        epoch, in_epoch = divmod(step - 1, self._steps_per_epoch)
        # Consecutive windows of the shuffled order go to consecutive ranks, so no two ranks share
        # one.
        first = (in_epoch * self.num_ranks + self.rank) * self.batch
        indices = np.arange(first, first + self.batch)
        # Without the shift every epoch would cut the text at the same tokens.
        shift = np.random.SeedSequence([self.seed, epoch, self.sequence]).generate_state(1)
        windows = shuffled(indices, self._num_windows, seed=self.seed, epoch=epoch)
        return windows * self.sequence + int(shift[0]) % self.sequence


def batches_of(
    config: TrainConfig, corpus: Corpus, layout: Layout, *, rank: int, done: int
) -> Batches:
    """The batches left for a rank after ``done`` steps; ValueError where the text does not fit."""
    if corpus.vocabulary > VOCABULARY:
        raise ValueError(
            f"the data has a vocabulary of {corpus.vocabulary} and the model one of {VOCABULARY}; "
            "give text, or token shards of bytes"
        )
    if len(corpus.held_out) <= config.sequence:
        raise ValueError(
            f"the data holds out {len(corpus.held_out)} tokens and --sequence {config.sequence} "
            "needs more; give more text or a shorter sequence"
        )
    return Batches(
        text=corpus.train,
        sequence=config.sequence,
        batch=config.samples_per_step,
        rank=layout.data_rank(rank),
        num_ranks=layout.data_ranks,
        seed=config.seed,
        first_step=done + 1,
        last_step=config.steps,
    )


def windows_at(
    text: Text, starts: NDArray[np.int64], sequence: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Windows that begin at ``starts``, and a token ahead: int64, [windows, sequence] each."""
    indices = starts[:, None] + np.arange(sequence + 1)
    # int64, because embeddings and cross-entropy take no smaller integers.
    windows = torch.from_numpy(text[indices].astype(np.int64))
    return windows[:, :-1], windows[:, 1:]


T = TypeVar("T")


def prefetch(batches: Iterable[T], depth: int) -> Iterable[T]:
    """The same batches in the same order, at most ``depth`` of them prepared ahead; 0 = none.

    An error in the thread is raised in the loop at the batch where it occurred. The thread ends
    with the loop, finished or not.
    """
    return _prefetch_in_thread(batches, depth) if depth else batches


def _prefetch_in_thread(batches: Iterable[T], depth: int) -> Iterator[T]:
    source = iter(batches)
    # One worker: with two, batches could be drawn from the iterator out of order.
    thread = ThreadPoolExecutor(1, thread_name_prefix="prefetch")

    try:
        pending = deque(thread.submit(next, source, None) for _ in range(depth))
        while (batch := pending.popleft().result()) is not None:
            pending.append(thread.submit(next, source, None))
            yield batch
    finally:
        # Also after a break in the loop: the generator is closed then, which runs this.
        thread.shutdown(cancel_futures=True)
