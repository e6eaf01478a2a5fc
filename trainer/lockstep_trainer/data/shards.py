"""The text of a run: the standard library, a folder of text files, or token shards.

Token shards are a folder of raw token files and a manifest with a checksum for each of them:
``manifest.json`` and, in the same folder, the files that it names. A shard file holds
only tokens, little-endian, ``uint8`` (text as bytes) or ``uint16`` (ids of a tokenizer). The
manifest is

    {"format": "lockstep-token-shards", "version": 1, "dtype": "uint16", "vocabulary": 50257,
     "shards": [{"file": "shard-00000.bin", "tokens": 67108864, "sha256": "9f86d0..."}]}

All shards in the order of the manifest are one text; every token is below ``vocabulary``.
"""

import hashlib
import json
import os
import shutil
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from lockstep_records.file_access.atomic_file import sync_folder, write_atomically

NUM_BYTES = 256
MAX_TOKEN_IDS = 1 << 16
_LIMIT_BYTES = 8_000_000
_MAX_TEXT_BYTES = 1 << 30
# 240,000 bytes of 8 MB: about 1,900 windows of the default length.
_HELD_OUT_RATIO = 0.03
# Packages differ from machine to machine, and tests may be missing from an installation.
_EXCLUDED = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test"})
_BLOCK = 1 << 16
_MAX_BLOCKS = 256


class Text(Protocol):
    """A sequence of tokens, in memory or in mapped files, indexed by arrays."""

    def __len__(self) -> int: ...

    def __getitem__(self, indices: NDArray[np.int64], /) -> NDArray[Any]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """Real text, the end of it held out from training.

    Attributes:
        sha256: of the whole text, held-out part included; for token shards, of their manifest.
        vocabulary: bound above every token; 256 where tokens are bytes.
    """

    train: Text
    held_out: Text
    sha256: str
    vocabulary: int = NUM_BYTES
    bytes_per_token: int = 1

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole text."""
        return (len(self.train) + len(self.held_out)) * self.bytes_per_token

    @property
    def unigram_entropy(self) -> float:
        """Entropy of the token frequencies in nats: the loss of a model that only counts tokens.

        -sum(p log p) over the frequencies p. Above 16 Mi tokens of a part it is estimated from
        blocks spread evenly over the part.
        """
        counts = _frequencies(self.train) + _frequencies(self.held_out)
        share = counts[counts > 0] / counts.sum()
        return float(-(share * np.log(share)).sum())


def held_out_from(num_tokens: int) -> int:
    """Index of the first token that is held out from training."""
    return num_tokens - int(num_tokens * _HELD_OUT_RATIO)


def standard_library() -> Path:
    """Folder of the standard library of the running interpreter."""
    return Path(sysconfig.get_path("stdlib"))


def read_corpus(folder: Path) -> Corpus:
    """The Python sources under a folder by name, up to a limit; ValueError without any, OSError.

    Installed packages and tests are excluded, so that one interpreter gives one text everywhere.
    """
    text = bytearray()
    for name in _names(folder, excluded=_EXCLUDED):
        if name.endswith(".py"):
            text += (folder / name).read_bytes()
        if len(text) >= _LIMIT_BYTES:
            break
    if not text:
        raise ValueError(
            f"corpus folder {folder} holds no Python source; "
            "use an interpreter with its standard library as files"
        )
    return _corpus_of(bytes(text[:_LIMIT_BYTES]))


def read_text_folder(folder: Path) -> Corpus:
    """All visible files under a folder by name; OSError, ValueError if none or too much is text."""
    text = bytearray()
    for path in text_files(folder):
        text += read_text_file(path)
        if len(text) > _MAX_TEXT_BYTES:
            raise ValueError(
                f"data folder {folder} holds more than {_MAX_TEXT_BYTES} bytes of text, too much "
                "to be held by every rank; make token shards of it with `lockstep shards`"
            )
    return _corpus_of(bytes(text))


def text_files(folder: Path) -> list[Path]:
    """The files of a data folder by name; ValueError if there is none, or no regular file."""
    paths = [folder / name for name in _names(folder, excluded=frozenset())]
    for path in paths:
        if not path.is_file():
            raise ValueError(f"data file {path} is not a regular file; take it out of the folder")
    if not any(path.stat().st_size for path in paths):
        raise ValueError(f"data folder {folder} holds no text; put text files there")
    return paths


def read_text_file(path: Path) -> bytes:
    """The bytes of one text file; OSError, or ValueError where it is not UTF-8."""
    text = path.read_bytes()
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"data file {path} is not UTF-8 text (byte {error.start}); "
            "convert it or take it out of the folder"
        ) from error
    return text


def _names(folder: Path, excluded: frozenset[str]) -> list[str]:
    """Names of the visible files under a folder, sorted; excluded folders are not walked."""
    names = []
    for parent, folders, files in os.walk(folder, onerror=_raise):
        folders[:] = [name for name in folders if name not in excluded and name[0] != "."]
        relative = Path(parent).relative_to(folder)
        names += [(relative / name).as_posix() for name in files if name[0] != "."]
    # os.walk has the order of the file system; the text must be the same everywhere.
    return sorted(names)


def _raise(error: OSError) -> None:
    raise error  # os.walk would skip a folder that cannot be read


def _corpus_of(text: bytes) -> Corpus:
    tokens = np.frombuffer(text, np.uint8)
    held_out = held_out_from(len(tokens))
    return Corpus(
        train=tokens[:held_out], held_out=tokens[held_out:], sha256=hashlib.sha256(text).hexdigest()
    )


def _frequencies(text: Text) -> NDArray[np.int64]:
    """Count of each token in a text, or in blocks spread evenly over a long one, [tokens]."""
    counts = np.zeros(MAX_TOKEN_IDS, np.int64)
    num_blocks = -(-len(text) // _BLOCK)
    for block in range(0, num_blocks, -(-num_blocks // _MAX_BLOCKS) or 1):
        indices = np.arange(block * _BLOCK, min(len(text), (block + 1) * _BLOCK))
        counts += np.bincount(text[indices], minlength=MAX_TOKEN_IDS)
    return counts


MANIFEST = "manifest.json"
DTYPES: dict[str, np.dtype[Any]] = {"uint8": np.dtype("<u1"), "uint16": np.dtype("<u2")}
_MAX_MANIFEST_BYTES = 64 << 20
_CHUNK_BYTES = 4 << 20
_QUIET_SECONDS = 2.0
_Count = Annotated[int, Meta(ge=1)]


class Shard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The manifest's entry for one file of tokens, a plain name in the same folder."""

    file: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")]
    tokens: _Count
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a folder of token shards holds."""

    format: Literal["lockstep-token-shards"]
    version: Literal[1]
    dtype: Literal["uint8", "uint16"]
    vocabulary: Annotated[int, Meta(ge=1, le=MAX_TOKEN_IDS)]
    shards: Annotated[tuple[Shard, ...], Meta(min_length=1)]

    def __post_init__(self) -> None:
        if len({shard.file for shard in self.shards}) < len(self.shards):
            raise ValueError("shards names a file twice")

    @property
    def numbers(self) -> np.dtype[Any]:
        """Type of a stored token."""
        return DTYPES[self.dtype]

    def as_json(self) -> str:
        """The text of the manifest; equal data give equal text."""
        return json.dumps(msgspec.to_builtins(self), indent=1) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder; OSError, or ValueError with the file and the field."""
    path = folder / MANIFEST
    # Checked before the read, so that a wrong file does not fill the memory.
    if path.stat().st_size > _MAX_MANIFEST_BYTES:
        raise ValueError(f"{path} is larger than {_MAX_MANIFEST_BYTES} bytes")
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from error


def check_shards(
    folder: Path,
    manifest: Manifest,
    *,
    say: Callable[[str], None],
    checksums: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Refuses shards that differ from the manifest; reads a few megabytes at a time.

    ``say`` gets a line every two seconds; without ``checksums`` sizes alone are compared. A shard
    that is missing, truncated or corrupt is a ValueError, one that cannot be read an OSError.
    """
    for shard in manifest.shards:
        # Sizes of all shards first: that takes no time and finds most damage.
        _check_size(folder / shard.file, shard.tokens * manifest.numbers.itemsize)
    if not checksums:
        return
    last_line_seconds = clock()
    for number, shard in enumerate(manifest.shards):
        digest, highest = hashlib.sha256(), 0
        with (folder / shard.file).open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                highest = max(highest, int(np.frombuffer(chunk, manifest.numbers).max()))
                if clock() - last_line_seconds > _QUIET_SECONDS:
                    last_line_seconds = clock()
                    say(f"checked {number} of {len(manifest.shards)} shards, now {shard.file}")
        _check_sha256(folder / shard.file, shard, digest.hexdigest())
        _check_highest(folder / shard.file, highest, manifest.vocabulary)


def _check_highest(path: Path, highest: int, vocabulary: int) -> None:
    if highest >= vocabulary:
        raise ValueError(
            f"shard {path} holds token {highest} and its manifest says that all are below "
            f"{vocabulary}"
        )


def _check_size(path: Path, expected: int) -> None:
    if not path.is_file():
        raise ValueError(f"shard {path} is missing; the manifest names it")
    if (size := path.stat().st_size) != expected:
        raise ValueError(f"shard {path} has {size} bytes and its manifest says {expected}")


def _check_sha256(path: Path, shard: Shard, sha256: str) -> None:
    if sha256 != shard.sha256:
        raise ValueError(
            f"shard {path} is corrupt: its sha256 is {sha256} and its manifest says "
            f"{shard.sha256}; fetch it again"
        )


def open_shards(folder: Path, manifest: Manifest) -> Corpus:
    """The shards as a corpus, mapped into memory but not read; or OSError."""
    tokens = sum(shard.tokens for shard in manifest.shards)
    held_out = held_out_from(tokens)
    mapped = tuple(
        # Mapped, so that the ranks of a node share one copy in the page cache.
        np.memmap(folder / shard.file, manifest.numbers, "r")
        for shard in manifest.shards
    )
    return Corpus(
        train=MappedText(mapped, 0, held_out),
        held_out=MappedText(mapped, held_out, tokens),
        sha256=hashlib.sha256(manifest.as_json().encode()).hexdigest(),
        vocabulary=manifest.vocabulary,
        bytes_per_token=manifest.numbers.itemsize,
    )


class MappedText:
    """The tokens ``start`` to ``stop`` of consecutive shards; only indexed tokens are read."""

    def __init__(self, shards: tuple[NDArray[Any], ...], start: int, stop: int) -> None:
        self._shards, self._start, self._stop = shards, start, stop
        self._begins = np.cumsum([0, *(len(shard) for shard in shards)])

    def __len__(self) -> int:
        return self._stop - self._start

    def __getitem__(self, indices: NDArray[np.int64], /) -> NDArray[Any]:
        absolute = indices + self._start
        shard_of = np.searchsorted(self._begins, absolute, side="right") - 1
        tokens = np.empty(indices.shape, self._shards[0].dtype)
        for shard in np.unique(shard_of):
            is_in = shard_of == shard
            tokens[is_in] = self._shards[shard][absolute[is_in] - self._begins[shard]]
        return tokens


def write_text_shards(texts: Path, to: Path, *, tokens_per_shard: int) -> Manifest:
    """Writes shards of bytes from the text files of a folder; OSError, or ValueError for a text."""
    chunks = (np.frombuffer(read_text_file(path), np.uint8) for path in text_files(texts))
    return write_shards(
        chunks, to, dtype="uint8", vocabulary=NUM_BYTES, tokens_per_shard=tokens_per_shard
    )


def write_shards(
    chunks: Iterable[NDArray[Any]],
    to: Path,
    *,
    dtype: Literal["uint8", "uint16"],
    vocabulary: int,
    tokens_per_shard: int,
) -> Manifest:
    """Writes shards of tokens from chunks of any length, with one chunk in memory at a time.

    Raises ValueError where a token is outside the vocabulary, there is none, or ``to`` exists;
    OSError where a file cannot be written, and leaves none.
    """
    if to.exists():
        raise ValueError(f"{to} exists already; give a new folder for the shards")
    # In the same folder, because a rename does not cross file systems.
    temporary = to.with_name(f".{to.name}.{os.getpid()}")
    temporary.mkdir()
    try:
        slices = _split(_checked(chunks, vocabulary), tokens_per_shard)
        shards = tuple(_write_files(temporary, slices, DTYPES[dtype], tokens_per_shard))
        manifest = Manifest(
            format="lockstep-token-shards", version=1, dtype=dtype, vocabulary=vocabulary,
            shards=shards,
        )  # fmt: skip
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


def say_on_stderr(line: str) -> None:
    """Writes one line for people to stderr."""
    sys.stderr.write(f"lockstep: {line}\n")
    sys.stderr.flush()


def read_data(path: Path | None, *, checksums: bool = True) -> Corpus:
    """The text of a run: of text files, token shards, or the standard library; or ValueError.

    Shards are read once to verify their ``checksums``.
    """
    try:
        if path is None:
            return read_corpus(standard_library())
        if not path.is_dir():
            raise ValueError(
                f"--data {path} is not a folder; give one of text files or token shards"
            )
        if not (path / MANIFEST).exists():
            return read_text_folder(path)
        manifest = read_manifest(path)
        check_shards(path, manifest, checksums=checksums, say=say_on_stderr)
        return open_shards(path, manifest)
    except OSError as error:
        raise ValueError(
            f"the data cannot be read: {error.filename or path}: {error.strerror}"
        ) from error
