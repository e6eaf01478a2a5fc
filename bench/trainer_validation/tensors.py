"""The tensors of a checkpoint, to compare two."""

import warnings
from pathlib import Path
from typing import Any, cast

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load


def read_all_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint by name, such as ``model.head.weight``, in one process."""
    index = FileSystemReader(folder).read_metadata().state_dict_metadata
    tensors = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in index.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    with warnings.catch_warnings(action="ignore"):  # torch warns that no process group exists
        load(cast(dict[str, Any], tensors), storage_reader=FileSystemReader(folder), no_dist=True)
    return tensors
