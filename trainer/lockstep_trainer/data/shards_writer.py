"""Writes token shards to a temporary folder, which is renamed when all files are on the disk."""

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep_records.file_access.atomic_file import sync_folder, write_atomically
from lockstep_trainer.data.corpus import NUM_BYTES, read_text_file, text_files
from lockstep_trainer.data.shards import DTYPES, MANIFEST, Manifest, Shard


def write_text_shards(texts: Path, to: Path, *, tokens_per_shard: int) -> Manifest:
    """Writes shards of bytes from a folder of text files in the order of their names.

    Raises:
        ValueError: a text cannot be used, or ``to`` exists.
        OSError: a file cannot be read or written.
    """
    chunks = (np.frombuffer(read_text_file(path), np.uint8) for path in text_files(texts))
    return write_shards(
        chunks, to, dtype="uint8", vocabulary=NUM_BYTES, tokens_per_shard=tokens_per_shard
    )


def write_shards(
    chunks: Iterable[NDArray[Any]],
    to: Path,
    *,
    dtype: str,
    vocabulary: int,
    tokens_per_shard: int,
) -> Manifest:
    """Writes shards of tokens from chunks of any length, with one chunk in memory at a time.

    Raises:
        ValueError: a token is outside the vocabulary, there is none, or ``to`` exists.
        OSError: a file cannot be written; no file is left then.
    """
    if to.exists():
        raise ValueError(f"{to} exists already; give a new folder for the shards")
    # In the same folder, because a rename does not cross file systems.
    temporary = to.with_name(f".{to.name}.{os.getpid()}")
    temporary.mkdir()
    try:
        slices = _split(_checked(chunks, vocabulary), tokens_per_shard)
        shards = tuple(_write_files(temporary, slices, DTYPES[dtype], tokens_per_shard))
        manifest = Manifest(dtype=dtype, vocabulary=vocabulary, shards=shards)
        write_atomically(temporary / MANIFEST, manifest.as_json(), durable=True)
        temporary.rename(to)
        sync_folder(to.parent)
    finally:  # after the rename the folder no longer exists
        shutil.rmtree(temporary, ignore_errors=True)
    return manifest


def _checked(chunks: Iterable[NDArray[Any]], vocabulary: int) -> Iterator[NDArray[Any]]:
    for chunk in chunks:
        if len(chunk) and not 0 <= int(chunk.min()) <= int(chunk.max()) < vocabulary:
            raise ValueError(
                f"a token of {int(chunk.min())} to {int(chunk.max())} is outside the vocabulary "
                f"of {vocabulary}; give a larger one"
            )
        yield chunk


def _split(
    chunks: Iterable[NDArray[Any]], tokens_per_shard: int
) -> Iterator[tuple[int, NDArray[Any]]]:
    """The chunks, split where a shard ends, each slice with the number of its shard."""
    num_tokens = 0
    for chunk in chunks:
        begin = 0
        while begin < len(chunk):
            tokens = chunk[begin : begin + tokens_per_shard - num_tokens % tokens_per_shard]
            yield num_tokens // tokens_per_shard, tokens
            num_tokens, begin = num_tokens + len(tokens), begin + len(tokens)


def _write_files(
    folder: Path,
    slices: Iterator[tuple[int, NDArray[Any]]],
    dtype: np.dtype[Any],
    tokens_per_shard: int,
) -> Iterator[Shard]:
    """Writes the slices of each shard to its file."""
    pending = next(slices, None)
    while pending is not None:
        number, digest, num_tokens = pending[0], hashlib.sha256(), 0
        name = f"shard-{number:05d}.bin"
        with (folder / name).open("wb") as file:
            while pending is not None and pending[0] == number:
                packed = pending[1].astype(dtype).tobytes()
                file.write(packed)
                digest.update(packed)
                num_tokens += len(pending[1])
                pending = next(slices, None)
            # The rename of the folder must not become visible before the bytes are on the disk.
            file.flush()
            os.fsync(file.fileno())
        assert num_tokens <= tokens_per_shard
        yield Shard(file=name, tokens=num_tokens, sha256=digest.hexdigest())
