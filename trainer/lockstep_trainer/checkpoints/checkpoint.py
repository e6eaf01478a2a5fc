"""Saves and restores a run: every rank its shards, and all agree on what happened.

With ``--checkpoint-async`` a step waits only until its state is copied; a thread of each rank does
the rest, writing, proving and committing, over a process group of its own.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

import lockstep
from lockstep_trainer.checkpoints.files import (
    Facts,
    InvalidCheckpointError,
    commit,
    find_newest,
    folder_of,
    keep_newest,
)
from lockstep_trainer.checkpoints.shards import (
    State,
    read_shards,
    set_state,
    state_of,
    write_shards,
)
from lockstep_trainer.config import TrainConfig
from lockstep_trainer.mesh import Layout
from lockstep_trainer.parallel.shared import SharedModel
from lockstep_trainer.world import World


class CheckpointError(Exception):
    """A checkpoint could not be written; training can go on. Raised on every rank alike."""


def facts_of(config: TrainConfig, layout: Layout, *, corpus_sha256: str) -> Facts:
    """What a checkpoint and a run must share for the run to land on the exact sample.

    Strategy, layout and number of ranks are not in it: shards are cut anew for the run that reads
    them. The global batch is, for the order of the data and the learning rate go by steps; a run
    on other ranks keeps it by --batch and --accumulate, or is refused.
    """
    return {
        **config.model_shape,
        "global_batch": config.samples_per_step * layout.data_ranks,
        "seed": config.seed,
        "corpus_sha256": corpus_sha256,
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Save:
    """A save that has come to its end; ``failure`` says why it is none, on every rank alike.

    Attributes:
        seconds: from the write's begin to its end.
        size_bytes: of this rank's own shards.
    """

    step: int
    failure: str | None
    seconds: float
    size_bytes: int

    def check(self) -> None:
        """Does nothing if it went well.

        Raises:
            CheckpointError: it did not.
        """
        if self.failure is not None:
            raise CheckpointError(
                f"checkpoint of step {self.step} could not be written: {self.failure}"
            )


class Checkpoints:
    """The checkpoints of one run. Every rank makes one, and calls the same methods at each step.

    There is no random state to save: nothing is drawn at random after the weights are made, and
    a step's batch depends on its number alone.

    Args:
        say: tells people one line.
        monitor: counts saves and the time that steps wait for them.
    """

    def __init__(
        self,
        config: TrainConfig,
        facts: Facts,
        world: World,
        say: Callable[[str], None],
        monitor: lockstep.NoopMonitor | None = None,
    ) -> None:
        self._config, self._facts, self._world, self._say = config, facts, world, say
        self._monitor = monitor or lockstep.disabled()
        self._ended: list[Save] = []
        self._running: Future[Save] | None = None
        self._told: dict[int, lockstep.Saving] = {}
        if config.checkpoint_dir is None:
            return
        limit = timedelta(seconds=config.timeout)
        self._root = config.checkpoint_dir
        self._group = cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=limit))
        if config.checkpoint_async:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
            self._stager = DefaultStager(
                StagingOptions(
                    use_pinned_memory=world.device.type == "cuda",
                    use_shared_memory=False,
                    use_async_staging=False,
                    use_non_blocking_copy=False,
                )
            )

    def after(
        self, step: int, model: SharedModel, optimizer: torch.optim.Optimizer, *, stopping: bool
    ) -> None:
        """Saves if that is due after a step, and tells and counts the saves that have ended."""
        if self.due(step, stopping=stopping):
            with self._monitor.checkpoint(step) as saving:
                saving.later()
                self._told[step] = saving
                self.save(step, model, optimizer, wait=stopping)
        for save in self.ended():
            self._tell(save)

    def _tell(self, save: Save) -> None:
        saving = self._told.pop(save.step)
        saving.wrote(save.size_bytes)
        saving.verified()  # every rank reads its shards again before any calls it written
        saving.end(failed=save.failure is not None, seconds=save.seconds)
        try:
            save.check()
        except CheckpointError as error:
            self._say(str(error))

    def due(self, step: int, *, stopping: bool = False) -> bool:
        """Whether a checkpoint is to be written after a step: by the plan, or the run stops."""
        if self._config.checkpoint_dir is None:
            return False
        return stopping or self._config.due(step, self._config.checkpoint_every)

    def save(
        self, step: int, model: SharedModel, optimizer: torch.optim.Optimizer, *, wait: bool = False
    ) -> None:
        """Writes a checkpoint, or begins to; ``ended`` tells how it went.

        Args:
            step: that is done.
            model: as this rank holds it.
            optimizer: of the model.
            wait: until it is written, also with --checkpoint-async.
        """
        state = state_of(model, optimizer)
        if not self._config.checkpoint_async:
            self._ended.append(self._saved(step, state))
            return
        self._collect()  # one at a time: the copy's memory is used again
        staged: Any = self._stager.stage(cast(dict[str, Any], state))
        self._running = self._thread.submit(self._saved, step, staged)
        if wait or step == self._config.steps:
            self._collect()

    def ended(self) -> Iterator[Save]:
        """The saves that came to their end since this was asked last; does not wait."""
        if self._running is not None and self._running.done():
            self._collect()
        ended, self._ended = self._ended, []
        return iter(ended)

    def _collect(self) -> None:
        if self._running is not None:
            self._ended.append(self._running.result())
            self._running = None

    @property
    def _is_coordinator(self) -> bool:
        return self._world.rank == 0

    def _saved(self, step: int, state: State) -> Save:
        began = time.monotonic()
        failure = self._write(step, state)
        shards = folder_of(self._root, step).glob(f"__{self._world.rank}_*")
        return Save(
            step=step,
            failure=failure,
            seconds=time.monotonic() - began,
            size_bytes=0 if failure else sum(shard.stat().st_size for shard in shards),
        )

    def _write(self, step: int, state: State) -> str | None:
        """Why a checkpoint could not be written, or None; the same on every rank."""
        folder = folder_of(self._root, step)
        try:
            sha256_by_file = write_shards(state, folder, self._group)
        except CheckpointException as error:
            if self._is_coordinator:
                shutil.rmtree(folder, ignore_errors=True)
            return _first_of(error)
        failure = self._commit(folder, step, sha256_by_file) if self._is_coordinator else None
        told: list[str | None] = [failure]
        dist.broadcast_object_list(told, group=self._group, group_src=0)
        return told[0]

    def _commit(self, folder: Path, step: int, sha256_by_file: dict[str, str]) -> str | None:
        try:
            written = commit(folder, step, sha256_by_file, self._facts)
            keep_newest(self._root, written, self._config.checkpoint_keep)
        except (OSError, InvalidCheckpointError) as error:
            return str(error)
        return None

    def restore(self, model: SharedModel, optimizer: torch.optim.Optimizer) -> int:
        """Loads the newest valid checkpoint if there is one, chosen by rank 0 for all.

        Returns:
            Steps that are done: 0 when the run starts afresh.
        """
        wanted = self._config.resume or self._world.attempt > 0
        if self._config.checkpoint_dir is None or not wanted:
            return 0
        with self._monitor.restore() as restoring:
            chosen: list[Any] = [self._choose() if self._is_coordinator else None]
            dist.broadcast_object_list(chosen, group=self._group, group_src=0)
            path, step, passed_over = chosen[0]
            if path is not None:
                self._load(path, model, optimizer)
            if path is not None or passed_over:
                restoring.found(step, passed_over=passed_over)
        return int(step)

    def _load(self, path: Path, model: SharedModel, optimizer: torch.optim.Optimizer) -> None:
        state = state_of(model, optimizer)
        try:
            read_shards(state, path, self._group)
        except CheckpointException as error:
            raise RuntimeError(f"checkpoint {path} cannot be loaded: {_first_of(error)}") from error
        set_state(state, model, optimizer)

    def _choose(self) -> tuple[Path | None, int, int]:
        """The checkpoint to resume from and its step, and how many newer ones were not valid."""
        newest, passed_over = find_newest(self._root)
        for reason in passed_over:
            self._say(f"passed over checkpoint {reason}")
        if newest is None:
            self._say(f"no valid checkpoint in {self._root}: starting afresh")
            return None, 0, len(passed_over)
        self._say(f"resuming from {newest.path}")
        return newest.path, newest.step, len(passed_over)


def _first_of(error: CheckpointException) -> str:
    """What the first rank that failed said, in one line."""
    rank = min(error.failures)
    said, _ = error.failures[rank]
    return f"rank {rank}: {' '.join(str(said).split()) or type(said).__name__}"
