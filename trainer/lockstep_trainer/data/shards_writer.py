"""Writes token shards: beside the place first, and renamed there when all is on the disk."""

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from lockstep_trainer.data.corpus import NUM_BYTES, read_text_file, text_files
from lockstep_trainer.data.shards import DTYPES, MANIFEST, Manifest, Shard


def write_text_shards(texts: Path, to: Path, *, tokens_per_shard: int) -> Manifest:
    """Shards of bytes from a folder of text files in the order of their names.

    Raises:
        ValueError: the texts cannot be used, or the place is taken.
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
    """Shards of tokens that come in chunks of any length; one chunk at a time is held.

    Raises:
        ValueError: a token is outside the vocabulary, there is none, or the place is taken.
        OSError: a file cannot be written; nothing is left then.
    """
    if to.exists():
        raise ValueError(f"{to} is there already; give a place for the shards that is free")
    aside = to.with_name(f".{to.name}.{os.getpid()}")
    aside.mkdir()
    try:
        pieces = _pieces(_checked(chunks, vocabulary), tokens_per_shard)
        shards = tuple(_written(aside, pieces, DTYPES[dtype], tokens_per_shard))
        manifest = Manifest(dtype=dtype, vocabulary=vocabulary, shards=shards)
        with (aside / MANIFEST).open("wb") as file:
            file.write(manifest.as_json().encode())
            _sync(file)
        aside.rename(to)
    finally:  # renamed by now, or to be left nowhere
        shutil.rmtree(aside, ignore_errors=True)
    return manifest


def _checked(chunks: Iterable[NDArray[Any]], vocabulary: int) -> Iterator[NDArray[Any]]:
    for chunk in chunks:
        if len(chunk) and not 0 <= int(chunk.min()) <= int(chunk.max()) < vocabulary:
            raise ValueError(
                f"a token of {int(chunk.min())} to {int(chunk.max())} is outside the vocabulary "
                f"of {vocabulary}; give a larger one"
            )
        yield chunk


def _pieces(chunks: Iterable[NDArray[Any]], most: int) -> Iterator[tuple[int, NDArray[Any]]]:
    """The chunks, cut where a shard ends, each with the number of its shard."""
    written = 0
    for chunk in chunks:
        at = 0
        while at < len(chunk):
            piece = chunk[at : at + most - written % most]
            yield written // most, piece
            written, at = written + len(piece), at + len(piece)


def _written(
    folder: Path, pieces: Iterator[tuple[int, NDArray[Any]]], dtype: np.dtype[Any], most: int
) -> Iterator[Shard]:
    """Writes the pieces of each shard to its file."""
    held = next(pieces, None)
    while held is not None:
        number, digest, tokens = held[0], hashlib.sha256(), 0
        name = f"shard-{number:05d}.bin"
        with (folder / name).open("wb") as file:
            while held is not None and held[0] == number:
                packed = held[1].astype(dtype).tobytes()
                file.write(packed)
                digest.update(packed)
                tokens += len(held[1])
                held = next(pieces, None)
            _sync(file)
        assert tokens <= most
        yield Shard(file=name, tokens=tokens, sha256=digest.hexdigest())


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
