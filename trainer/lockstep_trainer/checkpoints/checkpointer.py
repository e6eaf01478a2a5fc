"""Saves and restores a run: each rank its shards, and all ranks agree on the outcome.

With ``--checkpoint-async`` a step waits only for a copy of its state. A thread of each rank writes,
verifies and commits the copy, over a process group of its own.
"""

import hashlib
import io
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
import torch.distributed as dist
from torch import futures
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.fsdp import FSDPModule

import lockstep
from lockstep_trainer.checkpoints import files
from lockstep_trainer.checkpoints.files import InvalidCheckpointError, make_fresh, sha256_of
from lockstep_trainer.config import TrainConfig
from lockstep_trainer.layout.world import Layout, World
from lockstep_trainer.parallel.parallel_model import ParallelModel

State: TypeAlias = dict[str, dict[str, Any]]


def state_of(model: ParallelModel, optimizer: torch.optim.Optimizer) -> State:
    """This rank's part of the state: references to its shards, not copies.

    It holds parameters and optimizer state by parameter name. Parameter groups are left out: they
    follow from the layout, and the learning rate follows from the step.
    """
    for part in model.parts:
        for module in part.modules():
            if isinstance(module, FSDPModule):
                module.reshard()  # an evaluation has no backward, which would reshard them
    optimizer_state: Any = get_optimizer_state_dict(model.module, optimizer)["state"]
    return {"model": get_model_state_dict(model.module), "optimizer": optimizer_state}


def set_state(state: State, model: ParallelModel, optimizer: torch.optim.Optimizer) -> None:
    """Loads a state from ``state_of`` into a rank's model and optimizer."""
    set_model_state_dict(model.module, state["model"])
    groups: Any = get_optimizer_state_dict(model.module, optimizer)["param_groups"]
    optimizer_state: Any = {"state": state["optimizer"], "param_groups": groups}
    set_optimizer_state_dict(model.module, optimizer, optimizer_state)


def write_shards(state: State, folder: Path, group: dist.ProcessGroup) -> dict[str, str]:
    """Writes, syncs and verifies the shards of all ranks, in a new folder.

    The group is all ranks, over gloo; nothing else may use it meanwhile. Gives SHA-256 by file: on
    rank 0 of every file, on the others none. Where one rank cannot write, every rank raises
    CheckpointException.
    """
    writer = _Writer(folder)
    state_dict_saver.save(state, storage_writer=writer, process_group=group)
    # The manifest needs the checksums of all ranks, and only rank 0 writes it.
    all_ranks: list[Any] | None = [None] * group.size() if group.rank() == 0 else None
    dist.gather_object(writer.files.sha256_by_file, all_ranks, group=group, group_dst=0)
    return {name: sha256 for files in all_ranks or () for name, sha256 in files.items()}


def read_shards(state: State, folder: Path, group: dist.ProcessGroup) -> None:
    """Fills a rank's part of the state from a checkpoint of any layout, in place."""
    load(state, storage_reader=FileSystemReader(folder), process_group=group)


class _Writer(FileSystemWriter):
    """torch's writer, in a new folder, with checksums; its errors reach every rank."""

    def __init__(self, folder: Path) -> None:
        # overwrite=True would half-overwrite a valid checkpoint if a kill came in the middle: torch
        # writes shards directly under their final names.
        super().__init__(folder, overwrite=False)
        # torch checks no content: it loads a flipped byte silently.
        self.fs = self.files = _HashedFiles()
        self._folder, self._is_coordinator = folder, False

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Notes whether this rank creates the folder."""
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)
        self._is_coordinator = is_coordinator

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Creates the folder, on the coordinator alone."""
        # No rank writes before the coordinator has all plans, so the folder exists by then.
        if not self._is_coordinator:
            return plan
        make_fresh(self._folder)
        return super().prepare_local_plan(plan)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> futures.Future[list[WriteResult]]:
        """Writes this rank's shards and verifies them."""
        written: futures.Future[list[WriteResult]] = super().write_data(plan, planner)
        self.files.verify(self._folder)
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Writes the index, on the coordinator alone, and verifies it."""
        super().finish(metadata, results)
        self.files.verify(self._folder)


class _HashedFiles(FileSystem):
    """New files, hashed from memory as they are written."""

    def __init__(self) -> None:
        self.sha256_by_file: dict[str, str] = {}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        """A new file; its checksum is known when the context is left."""
        assert mode == "wb"
        # x: the folder is new, so an existing file would be that of another writer.
        with _Hashed(io.FileIO(path, "xb")) as stream:
            yield stream
        self.sha256_by_file[Path(path).name] = stream.sha256.hexdigest()

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Renames the file and its checksum."""
        super().rename(path, new_path)
        self.sha256_by_file[Path(new_path).name] = self.sha256_by_file.pop(Path(path).name)

    def verify(self, folder: Path) -> None:
        """Reads all files again; InvalidCheckpointError where one differs from what was written."""
        for name, sha256 in self.sha256_by_file.items():
            if sha256_of(folder / name) != sha256:
                raise InvalidCheckpointError(f"{name} was read back otherwise than written")


class _Hashed(io.BufferedWriter):
    """A file that hashes the bytes written to it."""

    def __init__(self, raw: io.RawIOBase) -> None:
        super().__init__(raw)
        self.sha256 = hashlib.sha256()

    def write(self, data: Any) -> int:
        """Hashes and writes."""
        self.sha256.update(data)
        return super().write(data)


_Outcome = tuple[str | None, bool]
"""Why a checkpoint could not be written, or None; whether it was read back otherwise."""
_WRITTEN: _Outcome = (None, False)


def facts_of(config: TrainConfig, layout: Layout, *, corpus_sha256: str) -> files.Facts:
    """Facts in which a checkpoint and a run must agree for the run to resume at the exact sample.

    Strategy, layout and number of ranks are no such facts: shards are resharded for the run that
    reads them. The global batch is one, because the order of the data and the learning rate go by
    steps; a run on other ranks keeps it by --batch and --accumulate, or is refused.
    """
    return {
        **config.model_shape,
        "global_batch": config.samples_per_step * layout.data_ranks,
        "seed": config.seed,
        "corpus_sha256": corpus_sha256,
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Save:
    """A finished save.

    Attributes:
        failure: why it failed, the same on every rank; None when it succeeded.
        is_invalid: whether it failed because what was written was read back otherwise.
    """

    step: int
    failure: str | None
    is_invalid: bool = False
    seconds: float
    size_bytes: int


class Checkpointer:
    """The checkpoints of one run. Every rank has one and calls the same methods at each step.

    No random state is saved: nothing is drawn at random after the weights are initialised, and a
    step's batch depends on its number alone.
    """

    def __init__(
        self,
        config: TrainConfig,
        facts: files.Facts,
        world: World,
        say: Callable[[str], None],
        monitor: lockstep.Monitor | None = None,
    ) -> None:
        self._config, self._facts, self._world, self._say = config, facts, world, say
        self._monitor = monitor or lockstep.disabled()
        self._finished: list[Save] = []
        self._running: Future[Save] | None = None
        self._savings: dict[int, lockstep.Saving] = {}  # by step, until its save has finished
        if config.checkpoint_dir is None:
            return
        timeout = timedelta(seconds=config.timeout)
        self._root = config.checkpoint_dir
        # A group of its own: collectives of the thread must not mix with those of the loop.
        self._group = cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=timeout))
        if config.checkpoint_async:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
            # Async staging would return before the copy is done, and the optimizer changes weights
            # in place.
            self._stager = DefaultStager(
                StagingOptions(
                    use_pinned_memory=world.device.type == "cuda",
                    use_shared_memory=False,
                    use_async_staging=False,
                    use_non_blocking_copy=False,
                )
            )

    def after(
        self, step: int, model: ParallelModel, optimizer: torch.optim.Optimizer, *, stopping: bool
    ) -> None:
        """Saves if a checkpoint is due after this step; reports the saves that have finished."""
        if self.due(step, stopping=stopping):
            with self._monitor.checkpoint(step) as saving:
                # The save may finish in a later step; then _report counts it.
                saving.later()
                self._savings[step] = saving
                self.save(step, model, optimizer, wait=stopping)
        for finished in self.finished():
            self._report(finished)

    def _report(self, save: Save) -> None:
        saving = self._savings.pop(save.step)
        saving.wrote(save.size_bytes)
        saving.verified()  # each rank has read its shards again before the commit
        if save.is_invalid:
            saving.invalid()
        saving.end(failed=save.failure is not None, seconds=save.seconds)
        if save.failure is not None:
            self._say(f"checkpoint of step {save.step} could not be written: {save.failure}")

    def due(self, step: int, *, stopping: bool = False) -> bool:
        """Whether a checkpoint is due after a step: by plan, or because the run stops."""
        if self._config.checkpoint_dir is None:
            return False
        return stopping or self._config.due(step, self._config.checkpoint_every)

    def save(
        self,
        step: int,
        model: ParallelModel,
        optimizer: torch.optim.Optimizer,
        *,
        wait: bool = False,
    ) -> None:
        """Writes a checkpoint, or begins to without ``wait``; ``finished`` gives the outcome."""
        state = state_of(model, optimizer)
        if not self._config.checkpoint_async:
            self._finished.append(self._save(step, state))
            return
        self._collect()  # one save at a time: the stager uses the memory of the last copy again
        staged: Any = self._stager.stage(cast(dict[str, Any], state))
        self._running = self._thread.submit(self._save, step, staged)
        # After the last step the process ends, and with it the thread of a save that is under way.
        if wait or step == self._config.steps:
            self._collect()

    def finished(self) -> Iterator[Save]:
        """The saves that have finished since the last call; does not wait."""
        if self._running is not None and self._running.done():
            self._collect()
        finished, self._finished = self._finished, []
        return iter(finished)

    def _collect(self) -> None:
        if self._running is not None:
            self._finished.append(self._running.result())
            self._running = None

    @property
    def _is_coordinator(self) -> bool:
        return self._world.rank == 0

    def _save(self, step: int, state: State) -> Save:
        start = time.monotonic()
        failure, is_invalid = self._write(step, state)
        # torch names the files of a rank __RANK_N.distcp.
        shards = files.folder_of(self._root, step).glob(f"__{self._world.rank}_*")
        return Save(
            step=step,
            failure=failure,
            is_invalid=is_invalid,
            seconds=time.monotonic() - start,
            size_bytes=0 if failure else sum(shard.stat().st_size for shard in shards),
        )

    def _write(self, step: int, state: State) -> _Outcome:
        """Why a checkpoint could not be written, the same on every rank."""
        folder = files.folder_of(self._root, step)
        try:
            sha256_by_file = write_shards(state, folder, self._group)
        except CheckpointException as error:
            if self._is_coordinator:
                # An unfinished folder would only take space; a valid checkpoint has another name.
                shutil.rmtree(folder, ignore_errors=True)
            invalid = [
                isinstance(f, files.InvalidCheckpointError) for f, _ in error.failures.values()
            ]
            return _first_failure(error), any(invalid)
        failure = self._commit(folder, step, sha256_by_file) if self._is_coordinator else _WRITTEN
        outcome = [failure]
        # Only rank 0 commits, but all ranks must count the same save as failed.
        dist.broadcast_object_list(outcome, group=self._group, group_src=0)
        return outcome[0]

    def _commit(self, folder: Path, step: int, sha256_by_file: dict[str, str]) -> _Outcome:
        try:
            written = files.commit(folder, step, sha256_by_file, self._facts)
            files.keep_newest(self._root, written, self._config.checkpoint_keep)
        except (OSError, files.InvalidCheckpointError) as error:
            return str(error), isinstance(error, files.InvalidCheckpointError)
        return _WRITTEN

    def restore(self, model: ParallelModel, optimizer: torch.optim.Optimizer) -> int:
        """Loads the newest valid checkpoint, chosen by rank 0; the steps done, 0 from scratch."""
        # torchrun restarts the same command line, which need not have --resume.
        resumes = self._config.resume or self._world.attempt > 0
        if self._config.checkpoint_dir is None or not resumes:
            return 0
        with self._monitor.restore() as restoring:
            # One rank chooses: two ranks could see different folders on a shared file system.
            chosen: list[Any] = [self._choose() if self._is_coordinator else None]
            dist.broadcast_object_list(chosen, group=self._group, group_src=0)
            path, step, num_invalid = chosen[0]
            if path is not None:
                self._load(path, model, optimizer)
            if path is not None or num_invalid:
                restoring.found(step, passed_over=num_invalid)
        return int(step)

    def _load(self, path: Path, model: ParallelModel, optimizer: torch.optim.Optimizer) -> None:
        state = state_of(model, optimizer)
        try:
            read_shards(state, path, self._group)
        except CheckpointException as error:
            raise RuntimeError(
                f"checkpoint {path} cannot be loaded: {_first_failure(error)}"
            ) from error
        set_state(state, model, optimizer)

    def _choose(self) -> tuple[Path | None, int, int]:
        """The checkpoint to resume from, its step, and the number of newer, invalid ones."""
        newest, reasons = files.find_newest(self._root)
        for reason in reasons:
            self._say(f"passed over checkpoint {reason}")
        if newest is None:
            self._say(f"no valid checkpoint in {self._root}: starting from scratch")
            return None, 0, len(reasons)
        self._say(f"resuming from {newest.path}")
        return newest.path, newest.step, len(reasons)


def _first_failure(error: CheckpointException) -> str:
    # A failure on one rank makes the others fail too; the lowest rank is as good as any and stable.
    rank = min(error.failures)
    failure, _ = error.failures[rank]
    return f"rank {rank}: {' '.join(str(failure).split()) or type(failure).__name__}"
