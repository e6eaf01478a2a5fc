"""Token shards: written tokens are read back, and each violation of the manifest is named."""

import json
import re
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from lockstep_trainer.commands.shards import shards as command
from lockstep_trainer.config import TrainConfig
from lockstep_trainer.data.batches import batches_of
from lockstep_trainer.data.corpus import Corpus, read_text_folder
from lockstep_trainer.data.shards import (
    MANIFEST,
    check_shards,
    read_data,
    read_manifest,
    write_shards,
    write_text_shards,
)
from lockstep_trainer.layout.world import Layout


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Two text files of 2,500 bytes together."""
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("ab" * 600)
    (folder / "b.txt").write_text("cde\n" * 325)
    return folder


@pytest.fixture
def shards(texts: Path, tmp_path: Path) -> Path:
    """The same as shards of 1,000 tokens."""
    write_text_shards(texts, tmp_path / "shards", tokens_per_shard=1000)
    return tmp_path / "shards"


def tokens_of(corpus: Corpus) -> list[int]:
    parts = (corpus.train, corpus.held_out)
    return [int(token) for part in parts for token in part[np.arange(len(part))]]


def test_shards_of_text_are_the_text(texts: Path, shards: Path) -> None:
    assert sorted(path.name for path in shards.iterdir()) == [
        MANIFEST,
        *(f"shard-{number:05d}.bin" for number in range(3)),
    ]
    assert [shard.tokens for shard in read_manifest(shards).shards] == [1000, 1000, 500]
    of_shards, of_text = read_data(shards), read_text_folder(texts)
    assert tokens_of(of_shards) == tokens_of(of_text)
    assert len(of_shards.held_out) == len(of_text.held_out)
    assert of_shards.unigram_entropy == of_text.unigram_entropy
    assert of_shards.num_bytes == of_text.num_bytes == 2500


def test_wide_tokens_are_little_endian_and_windows_cross_shards(tmp_path: Path) -> None:
    tokens = np.arange(40_000, 40_100)
    folder = tmp_path / "wide"
    write_shards([tokens], folder, dtype="uint16", vocabulary=50_257, tokens_per_shard=7)
    assert (folder / "shard-00000.bin").read_bytes()[:2] == (40_000).to_bytes(2, "little")
    corpus = read_data(folder)
    assert tokens_of(corpus) == tokens.tolist()
    indices = np.array([[0, 1, 2], [5, 6, 7], [90, 91, 92]])
    assert corpus.train[indices].tolist() == (indices + 40_000).tolist()
    assert (corpus.vocabulary, corpus.num_bytes) == (50_257, 200)


def test_equal_tokens_have_equal_checksums_and_others_differ(texts: Path, tmp_path: Path) -> None:
    def checksum(to: str) -> str:
        write_text_shards(texts, tmp_path / to, tokens_per_shard=1000)
        return read_data(tmp_path / to).sha256

    first, second = checksum("first"), checksum("second")
    (texts / "a.txt").write_text("ab" * 599 + "aa")
    assert first == second != checksum("changed")


def _missing(folder: Path) -> None:
    (folder / "shard-00001.bin").unlink()


def _truncated(folder: Path) -> None:
    with (folder / "shard-00001.bin").open("r+b") as file:
        file.truncate(999)


def _corrupt(folder: Path) -> None:
    with (folder / "shard-00001.bin").open("r+b") as file:
        file.seek(500)
        file.write(b"!")


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (_missing, "is missing; the manifest names it"),
        (_truncated, "has 999 bytes and its manifest says 1000"),
        (_corrupt, "is corrupt: its sha256 is [0-9a-f]{64} and its manifest says [0-9a-f]{64}"),
    ],
)
def test_a_damaged_shard_is_named(
    shards: Path, damage: Callable[[Path], None], sentence: str
) -> None:
    damage(shards)
    with pytest.raises(ValueError, match=re.escape(str(shards / "shard-00001.bin ")) + sentence):
        read_data(shards)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"colour": 1}, "unknown field `colour`"),
        ({"version": 2}, "$.version"),
        ({"dtype": "int64"}, "'int64' - at `$.dtype`"),
        ({"dtype": ["uint8"]}, "$.dtype"),
        ({"vocabulary": 0}, ">= 1 - at `$.vocabulary`"),
        ({"vocabulary": True}, "$.vocabulary"),
        ({"shards": []}, "$.shards"),
        ({"shards": 3}, "$.shards"),
        ({"shards": [7]}, "$.shards[0]"),
        ({"shards": [{}]}, "missing required field `file` - at `$.shards[0]`"),
        ({"shards": [{"file": "../x", "tokens": 1, "sha256": "0" * 64}]}, "$.shards[0].file"),
        ({"shards": [{"file": "x", "tokens": -1, "sha256": "0" * 64}]}, "$.shards[0].tokens"),
        ({"shards": [{"file": "x", "tokens": 1, "sha256": "zz"}]}, "$.shards[0].sha256"),
        ({"shards": [{"file": "x", "tokens": 1, "sha256": "0" * 64}] * 2}, "a file twice"),
    ],
)
def test_a_manifest_that_violates_the_format_is_named(
    shards: Path, change: dict[str, Any], sentence: str
) -> None:
    path = shards / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=re.escape(str(path))) as refused:
        read_data(shards)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("text", ["", "{", "[1]", "[" * 100_000, '{"format": "x"}'])
def test_a_file_that_is_no_manifest_is_named(shards: Path, text: str) -> None:
    (shards / MANIFEST).write_text(text)
    with pytest.raises(ValueError, match=re.escape(str(shards / MANIFEST))):
        read_data(shards)


def test_a_token_beyond_the_vocabulary_of_the_manifest_is_named(shards: Path) -> None:
    path = shards / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {"vocabulary": 100}))
    with pytest.raises(ValueError, match=r"00001\.bin holds token 101 and .* below 100"):
        read_data(shards)


def test_data_that_the_model_cannot_take_is_refused(tmp_path: Path) -> None:
    def refused(number: int, vocabulary: int) -> str:
        folder = tmp_path / str(vocabulary)
        tokens = [np.full(number, vocabulary - 1)]
        write_shards(tokens, folder, dtype="uint16", vocabulary=vocabulary, tokens_per_shard=10**6)
        with pytest.raises(ValueError, match=r"the data .*; give") as error:
            batches_of(TrainConfig(), read_data(folder), Layout(world_size=1), rank=0, done=0)
        return str(error.value)

    assert "a vocabulary of 300 and the model one of 256" in refused(10_000, 300)
    assert "holds out 90 tokens and --sequence 128" in refused(3_000, 256)


def test_a_long_check_reports_its_progress(shards: Path) -> None:
    lines: list[str] = []
    seconds = count(0.0, 1.1)
    check_shards(shards, read_manifest(shards), say=lines.append, clock=lambda: next(seconds))
    assert lines[0] == "checked 1 of 3 shards, now shard-00001.bin"


def test_a_token_outside_the_vocabulary_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="outside the vocabulary of 10"):
        write_shards(
            [np.arange(5), np.arange(11)],
            tmp_path / "to",
            dtype="uint8",
            vocabulary=10,
            tokens_per_shard=3,
        )
    assert not list(tmp_path.iterdir())


def test_the_command_writes_shards_once_and_refuses_an_existing_folder(
    texts: Path, tmp_path: Path
) -> None:
    arguments = [str(texts), str(tmp_path / "to"), "--tokens-per-shard", "2000"]
    result = CliRunner().invoke(command, arguments)
    assert "2 shards, 2500 tokens in all" in result.stdout
    repeated = CliRunner().invoke(command, arguments)
    assert repeated.exit_code == 2
    assert "exists already" in repeated.stderr
