"""The files of one checkpoint: each rank writes its shards, reads them again and proves them.

What lies in them is the same whatever the layout, tensors by their names in the whole model, so any
other layout can read them. Beside the shards torch puts an index, which is a pickle: load only
checkpoints that you would run as a program.
"""

import hashlib
import io
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
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
from lockstep_trainer.parallel.shared import SharedModel

State: TypeAlias = dict[str, dict[str, Any]]


def state_of(model: SharedModel, optimizer: torch.optim.Optimizer) -> State:
    """This rank's part of the state: its shards, and no copy of them.

    Parameters by name, and by name what the optimizer keeps. Its groups are not in it: they follow
    the layout, and the learning rate is that of the step.
    """
    for part in model.parts:
        for module in part.modules():
            if isinstance(module, FSDPModule):
                module.reshard()  # an evaluation, with no backward after it, leaves some gathered
    kept: Any = get_optimizer_state_dict(model.module, optimizer)["state"]
    return {"model": get_model_state_dict(model.module), "optimizer": kept}


def set_state(state: State, model: SharedModel, optimizer: torch.optim.Optimizer) -> None:
    """Puts a state, as ``state_of`` gives it, into a rank's model and optimizer."""
    set_model_state_dict(model.module, state["model"])
    groups: Any = get_optimizer_state_dict(model.module, optimizer)["param_groups"]
    whole: Any = {"state": state["optimizer"], "param_groups": groups}
    set_optimizer_state_dict(model.module, optimizer, whole)


def write_shards(state: State, folder: Path, group: dist.ProcessGroup) -> dict[str, str]:
    """Writes the shards of all ranks into a fresh folder, syncs them and proves them.

    Args:
        state: this rank's part.
        folder: of the checkpoint; what was there is gone.
        group: all ranks, over gloo, and used by nothing else at the same time.

    Returns:
        On rank 0 the checksum of every file by name; on the others of their own.

    Raises:
        CheckpointException: on every rank, when one could not write.
    """
    writer = _Writer(folder)
    save(state, storage_writer=writer, process_group=group)
    all_ranks: list[Any] | None = [None] * group.size() if group.rank() == 0 else None
    dist.gather_object(writer.files.sha256_by_file, all_ranks, group=group, group_dst=0)
    return {name: sha256 for one in all_ranks or () for name, sha256 in one.items()}


def read_shards(state: State, folder: Path, group: dist.ProcessGroup) -> None:
    """Fills a rank's part of the state from a checkpoint of any layout, in place."""
    load(state, storage_reader=FileSystemReader(folder), process_group=group)


def read_whole(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a checkpoint by its name, such as ``model.head.weight``, for one process."""
    index = FileSystemReader(folder).read_metadata().state_dict_metadata
    tensors = {
        name: torch.empty(one.size, dtype=one.properties.dtype)
        for name, one in index.items()
        if isinstance(one, TensorStorageMetadata)
    }
    with warnings.catch_warnings(action="ignore"):  # that there is one process alone
        load(cast(dict[str, Any], tensors), storage_reader=FileSystemReader(folder), no_dist=True)
    return tensors


class _Writer(FileSystemWriter):
    """Torch's writer, in a fresh folder, with checksums; its errors reach every rank."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, overwrite=False)
        self.fs = self.files = _HashedFiles()
        self._folder, self._is_coordinator = folder, False

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Notes who makes the folder."""
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)
        self._is_coordinator = is_coordinator

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Makes the folder, on the coordinator alone: nobody writes before it has all plans."""
        if not self._is_coordinator:
            return plan
        make_fresh(self._folder)
        return super().prepare_local_plan(plan)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes this rank's shards and proves them."""
        written: Future[list[WriteResult]] = super().write_data(plan, planner)
        self.files.prove(self._folder)
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Writes the index, on the coordinator alone, and proves it."""
        super().finish(metadata, results)
        self.files.prove(self._folder)


class _HashedFiles(FileSystem):
    """New files, hashed from memory as they are written."""

    def __init__(self) -> None:
        self.sha256_by_file: dict[str, str] = {}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        """A file that is not there yet."""
        assert mode == "wb"
        with _Hashed(io.FileIO(path, "xb")) as stream:
            yield stream
        self.sha256_by_file[Path(path).name] = stream.sha256.hexdigest()

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """The checksum goes with the file."""
        super().rename(path, new_path)
        self.sha256_by_file[Path(new_path).name] = self.sha256_by_file.pop(Path(path).name)

    def prove(self, folder: Path) -> None:
        """Reads all files again.

        Raises:
            InvalidCheckpointError: one is not what was written.
        """
        for name, sha256 in self.sha256_by_file.items():
            if sha256_of(folder / name) != sha256:
                raise InvalidCheckpointError(f"{name} was read back otherwise than written")


class _Hashed(io.BufferedWriter):
    """A file that hashes what goes in."""

    def __init__(self, raw: io.RawIOBase) -> None:
        super().__init__(raw)
        self.sha256 = hashlib.sha256()

    def write(self, data: Any) -> int:
        """Hashes and writes."""
        self.sha256.update(data)
        return super().write(data)
