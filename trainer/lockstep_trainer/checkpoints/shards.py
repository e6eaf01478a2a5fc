"""The files of one checkpoint: each rank writes its shards, reads them again and verifies them.

They hold tensors by their names in the whole model, whatever the layout, so that a run with any
other layout can read them. torch adds an index, which is a pickle: load only checkpoints that you
would run as a program.
"""

import hashlib
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.fsdp import FSDPModule
from torch.futures import Future

from lockstep_trainer.checkpoints.files import InvalidCheckpointError, make_fresh, sha256_of
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
    save(state, storage_writer=writer, process_group=group)
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

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes this rank's shards and verifies them."""
        written: Future[list[WriteResult]] = super().write_data(plan, planner)
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
