"""Token shards: a folder of raw token files and a manifest with a checksum for each of them.

The format: ``manifest.json`` and the files that it names, beside it. A shard file is nothing but
tokens, little-endian, ``uint8`` (text as bytes) or ``uint16`` (ids of a tokenizer). The manifest is

    {"format": "lockstep-token-shards", "version": 1, "dtype": "uint16", "vocabulary": 50257,
     "shards": [{"file": "shard-00000.bin", "tokens": 67108864, "sha256": "9f86d0..."}]}

All shards in the order of the manifest are one text; every token is below ``vocabulary``.
"""

import hashlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep_trainer.data.corpus import MOST_TOKEN_IDS, Corpus, held_out_from

MANIFEST = "manifest.json"
FORMAT = "lockstep-token-shards"
VERSION = 1
DTYPES: dict[str, np.dtype[Any]] = {"uint8": np.dtype("<u1"), "uint16": np.dtype("<u2")}
_MOST_MANIFEST_BYTES = 64 << 20
_CHUNK_BYTES = 4 << 20
_QUIET_SECONDS = 2.0
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """One file of tokens, as the manifest tells of it."""

    file: str
    tokens: int
    sha256: str

    def __post_init__(self) -> None:
        if not isinstance(self.file, str) or not _FILE_NAME.fullmatch(self.file):
            raise ValueError(f"file {self.file!r} must be a plain name in the same folder")
        if not _is_count(self.tokens):
            raise ValueError(f"tokens {self.tokens!r} of {self.file} must be a count above 0")
        if not isinstance(self.sha256, str) or not _SHA256.fullmatch(self.sha256):
            raise ValueError(f"sha256 {self.sha256!r} of {self.file} must be 64 digits of hex")


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a folder of token shards holds."""

    dtype: str
    vocabulary: int
    shards: tuple[Shard, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.dtype, str) or self.dtype not in DTYPES:
            raise ValueError(f"dtype {self.dtype!r} is none of {', '.join(DTYPES)}")
        if not _is_count(self.vocabulary) or self.vocabulary > MOST_TOKEN_IDS:
            raise ValueError(f"vocabulary {self.vocabulary!r} must be 1 to {MOST_TOKEN_IDS}")
        if not self.shards:
            raise ValueError("shards is empty; name at least one")
        if len({shard.file for shard in self.shards}) < len(self.shards):
            raise ValueError("shards names a file twice")

    @property
    def numbers(self) -> np.dtype[Any]:
        """How a token is stored."""
        return DTYPES[self.dtype]

    def as_json(self) -> str:
        """The text of the manifest; equal data give equal text."""
        told = {"format": FORMAT, "version": VERSION, **asdict(self)}
        return json.dumps(told, indent=1) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder.

    Raises:
        ValueError: it is not as the format says; the text names the file and the field.
        OSError: it cannot be read.
    """
    path = folder / MANIFEST
    if path.stat().st_size > _MOST_MANIFEST_BYTES:
        raise ValueError(f"{path} is larger than {_MOST_MANIFEST_BYTES} bytes")
    try:
        return _manifest_of(json.loads(path.read_bytes()))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from error


def _manifest_of(read: Any) -> Manifest:
    told = _object(read, "manifest", Manifest, "format", "version")
    if (told.pop("format"), told.pop("version")) != (FORMAT, VERSION):
        raise ValueError(f"format and version must be {FORMAT!r} and {VERSION}")
    listed = told.pop("shards")
    if not isinstance(listed, list):
        raise ValueError("shards must be a list of objects")  # noqa: TRY004  # bad input is a ValueError
    shards = [_object(shard, "shard", Shard) for shard in listed]
    return Manifest(shards=tuple(Shard(**shard) for shard in shards), **told)


def _object(told: Any, what: str, kind: type[Any], *more: str) -> dict[str, Any]:
    """A JSON object with exactly the keys of a kind."""
    keys = {*more, *(field.name for field in fields(kind))}
    if not isinstance(told, dict):
        raise ValueError(f"{what} must be an object, not {type(told).__name__}")  # noqa: TRY004  # bad input is a ValueError
    if unknown := sorted(told.keys() - keys):
        raise ValueError(f"{what} has the unknown key {unknown[0]!r}; keys are {sorted(keys)}")
    if missing := sorted(keys - told.keys()):
        raise ValueError(f"{what} lacks the key {missing[0]!r}")
    return told


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def check_shards(
    folder: Path,
    manifest: Manifest,
    *,
    say: Callable[[str], None],
    checksums: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Refuses shards that are not what the manifest says; reads a few megabytes at a time.

    Args:
        folder: where the shards are.
        manifest: what they should be.
        say: told how far it is, every two seconds.
        checksums: False to look at the sizes only.
        clock: seconds, for ``say``.

    Raises:
        ValueError: a shard is missing, truncated or corrupt; the text names it.
        OSError: a shard cannot be read.
    """
    for shard in manifest.shards:
        _check_size(folder / shard.file, shard.tokens * manifest.numbers.itemsize)
    if not checksums:
        return
    last_said = clock()
    for place, shard in enumerate(manifest.shards):
        digest, highest = hashlib.sha256(), 0
        with (folder / shard.file).open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                highest = max(highest, int(np.frombuffer(chunk, manifest.numbers).max()))
                if clock() - last_said > _QUIET_SECONDS:
                    last_said = clock()
                    say(f"checked {place} of {len(manifest.shards)} shards, now {shard.file}")
        _compare(folder / shard.file, shard, digest.hexdigest())
        _check_highest(folder / shard.file, highest, manifest.vocabulary)


def _check_highest(path: Path, highest: int, vocabulary: int) -> None:
    if highest >= vocabulary:
        raise ValueError(
            f"shard {path} holds token {highest} and its manifest says that all are below "
            f"{vocabulary}"
        )


def _check_size(path: Path, right: int) -> None:
    if not path.is_file():
        raise ValueError(f"shard {path} is missing; the manifest names it")
    if (size := path.stat().st_size) != right:
        raise ValueError(f"shard {path} has {size} bytes and its manifest says {right}")


def _compare(path: Path, shard: Shard, sha256: str) -> None:
    if sha256 != shard.sha256:
        raise ValueError(
            f"shard {path} is corrupt: its sha256 is {sha256} and its manifest says "
            f"{shard.sha256}; fetch it again"
        )


def open_shards(folder: Path, manifest: Manifest) -> Corpus:
    """The shards as a corpus, mapped and not read.

    Raises:
        OSError: a shard cannot be mapped.
    """
    tokens = sum(shard.tokens for shard in manifest.shards)
    cut = held_out_from(tokens)
    mapped = tuple(
        np.memmap(folder / shard.file, manifest.numbers, "r") for shard in manifest.shards
    )
    return Corpus(
        train=MappedText(mapped, 0, cut),
        held_out=MappedText(mapped, cut, tokens),
        sha256=hashlib.sha256(manifest.as_json().encode()).hexdigest(),
        vocabulary=manifest.vocabulary,
        bytes_per_token=manifest.numbers.itemsize,
    )


class MappedText:
    """The tokens ``start`` to ``stop`` of all shards in a row; only what is asked for is read."""

    def __init__(self, shards: tuple[NDArray[Any], ...], start: int, stop: int) -> None:
        self._shards, self._start, self._stop = shards, start, stop
        self._begins = np.cumsum([0, *(len(shard) for shard in shards)])

    def __len__(self) -> int:
        return self._stop - self._start

    def __getitem__(self, places: NDArray[np.int64], /) -> NDArray[Any]:
        at = places + self._start
        in_shard = np.searchsorted(self._begins, at, side="right") - 1
        tokens = np.empty(places.shape, self._shards[0].dtype)
        for shard in np.unique(in_shard):
            here = in_shard == shard
            tokens[here] = self._shards[shard][at[here] - self._begins[shard]]
        return tokens
