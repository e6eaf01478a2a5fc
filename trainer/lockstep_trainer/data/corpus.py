"""A corpus: tokens to train on and tokens held out, from the standard library or text files."""

import hashlib
import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

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
