"""Saves and restores a run: rank 0 writes, every rank reads, and all agree on what happened."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from lockstep_trainer.checkpoint_files import (
    STATE,
    Facts,
    InvalidCheckpointError,
    commit,
    find_newest,
    keep_newest,
)
from lockstep_trainer.config import TrainConfig
from lockstep_trainer.mesh import Layout
from lockstep_trainer.parallel.shared import SharedModel
from lockstep_trainer.whole_state import State, gather_state, scatter_state
from lockstep_trainer.world import World


class CheckpointError(Exception):
    """A checkpoint could not be written; training can go on. Raised on every rank alike."""


def facts_of(config: TrainConfig, layout: Layout, *, corpus_sha256: str) -> Facts:
    """What a checkpoint and a run must share for the run to land on the exact sample.

    Strategy and layout are not in it: the whole state fits them all.
    """
    return {
        **config.model_shape,
        "global_batch": config.samples_per_step * layout.data_ranks,
        "seed": config.seed,
        "corpus_sha256": corpus_sha256,
    }


class Checkpoints:
    """The checkpoints of one run.

    There is no random state to save: nothing is drawn at random after the weights are made, and
    a step's batch depends on its number alone.

    Args:
        say: tells people one line.
    """

    def __init__(
        self, config: TrainConfig, facts: Facts, world: World, say: Callable[[str], None]
    ) -> None:
        self._config, self._facts, self._world, self._say = config, facts, world, say
        self._folder = config.checkpoint_dir

    def due(self, step: int) -> bool:
        """Whether a checkpoint is to be written after a step."""
        return self._folder is not None and self._config.due(step, self._config.checkpoint_every)

    def save(self, step: int, model: SharedModel, optimizer: torch.optim.Optimizer) -> None:
        """Writes a checkpoint; every rank waits, so that the pause counts as one on all.

        Raises:
            CheckpointError: the disk does not take it.
        """
        assert self._folder is not None
        state = gather_state(model, optimizer)
        failure = self._write(self._folder, step, state) if self._is_writer else None
        told: list[str | None] = [failure]
        dist.broadcast_object_list(told, src=0)
        if told[0] is not None:
            raise CheckpointError(f"checkpoint of step {step} could not be written: {told[0]}")

    @property
    def _is_writer(self) -> bool:
        return self._world.rank == 0

    def _write(self, folder: Path, step: int, state: State) -> str | None:
        """Why it could not be written, or None."""
        written_out = io.BytesIO()
        torch.save(state, written_out)
        try:
            written = commit(folder, step, written_out.getvalue(), self._facts)
            keep_newest(folder, written, self._config.checkpoint_keep)
        except (OSError, InvalidCheckpointError) as error:
            return str(error)
        return None

    def restore(self, model: SharedModel, optimizer: torch.optim.Optimizer) -> int:
        """Loads the newest valid checkpoint if there is one, chosen by rank 0 for all.

        Returns:
            Steps that are done: 0 when the run starts afresh.
        """
        if self._folder is None or not (self._config.resume or self._world.attempt):
            return 0
        chosen: list[Any] = [self._choose(self._folder) if self._is_writer else None]
        dist.broadcast_object_list(chosen, src=0)
        if chosen[0] is None:
            return 0
        path, step = chosen[0]
        state = torch.load(path / STATE, map_location="cpu", weights_only=True)
        scatter_state(state, model, optimizer)
        return int(step)

    def _choose(self, folder: Path) -> tuple[Path, int] | None:
        newest, passed_over = find_newest(folder)
        for reason in passed_over:
            self._say(f"passed over checkpoint {reason}")
        if newest is None:
            self._say(f"no valid checkpoint in {folder}: starting afresh")
            return None
        self._say(f"resuming from {newest.path}")
        return newest.path, newest.step
