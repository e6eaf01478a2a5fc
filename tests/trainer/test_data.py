import json
import re
import threading
from collections.abc import Callable, Generator, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from lockstep_trainer.commands.shards import shards as command
from lockstep_trainer.config import TrainConfig
from lockstep_trainer.data.batches import Batches, batches_of, prefetch
from lockstep_trainer.data.shards import (
    MANIFEST,
    Corpus,
    check_shards,
    read_corpus,
    read_data,
    read_manifest,
    read_text_folder,
    standard_library,
    write_shards,
    write_text_shards,
)
from lockstep_trainer.layout.world import Layout

TEXT = np.random.default_rng(0).integers(0, 256, 4_000).astype(np.uint8)


def batches(*, rank: int = 0, first: int = 1, last: int = 40, seed: int = 3) -> Batches:
    return Batches(
        text=TEXT,
        sequence=16,
        batch=4,
        rank=rank,
        num_ranks=3,
        seed=seed,
        first_step=first,
        last_step=last,
    )


def windows(x: torch.Tensor) -> set[bytes]:
    return {bytes(row.to(torch.uint8).tolist()) for row in x}


def text_of(corpus: Corpus) -> bytes:
    parts = (corpus.train, corpus.held_out)
    return b"".join(part[np.arange(len(part))].astype(np.uint8).tobytes() for part in parts)


def test_the_corpus_of_this_interpreter_is_the_same_every_time() -> None:
    first, second = read_corpus(standard_library()), read_corpus(standard_library())
    assert first.sha256 == second.sha256
    assert first.num_bytes == 8_000_000
    assert 0.02 < len(first.held_out) / first.num_bytes < 0.04
    assert 3.0 < first.unigram_entropy < 3.6


def test_installed_packages_and_tests_are_no_part_of_the_corpus(tmp_path: Path) -> None:
    for name in ("b/two.py", "a.py", "site-packages/other.py", "test/case.py", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    corpus = read_corpus(tmp_path)
    assert text_of(corpus) == b"a.pyb/two.py"


def test_a_folder_without_sources_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"corpus folder {tmp_path} holds no Python source"):
        read_corpus(tmp_path)


def test_no_window_is_seen_twice_in_an_epoch_by_any_ranks() -> None:
    per_epoch = batches()._steps_per_epoch
    seen = [
        window
        for rank in range(3)
        for _, x, _ in batches(rank=rank, last=per_epoch)
        for window in windows(x)
    ]
    assert len(seen) == len(set(seen)) == per_epoch * 3 * 4


def test_a_resumed_rank_sees_the_batches_it_would_have_seen() -> None:
    full = list(batches(rank=1))
    resumed = list(batches(rank=1, first=31))
    assert [step for step, *_ in resumed] == list(range(31, 41))
    for (_, x, y), (_, resumed_x, resumed_y) in zip(full[30:], resumed, strict=True):
        assert torch.equal(x, resumed_x)
        assert torch.equal(y, resumed_y)


def test_targets_are_the_inputs_one_byte_later() -> None:
    step, x, y = next(iter(batches()))
    assert (step, x.shape, x.dtype) == (1, (4, 16), torch.int64)
    assert torch.equal(x[:, 1:], y[:, :-1])


def test_any_folder_of_text_is_a_corpus_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("b/two.txt", "a.md", ".hidden", ".git/x", "c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert text_of(read_text_folder(tmp_path)) == b"a.mdb/two.txtc"
    assert text_of(read_data(tmp_path)) == b"a.mdb/two.txtc"


def test_data_that_cannot_be_read_is_named_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no text"):
        read_data(tmp_path)
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ValueError, match="holds no text"):
        read_data(tmp_path)
    (tmp_path / "image.png").write_bytes(b"text \xff\x00")
    with pytest.raises(ValueError, match=r"image\.png is not UTF-8 text \(byte 5\)"):
        read_data(tmp_path)
    (tmp_path / "image.png").unlink()
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"gone\.txt is not a regular file"):
        read_data(tmp_path)
    with pytest.raises(ValueError, match=r"--data .*/none is not a folder"):
        read_data(tmp_path / "none")


def test_prefetched_batches_are_the_same_in_the_same_order() -> None:
    for depth in (0, 1, 3, 100):
        steps = [step for step, *_ in prefetch(batches(), depth)]
        assert steps == list(range(1, 41))


def test_prefetching_is_bounded_and_the_thread_ends_with_the_loop() -> None:
    produced: list[int] = []

    def source() -> Iterator[int]:
        for number in range(100):
            produced.append(number)
            yield number

    ahead = iter(prefetch(source(), 3))
    assert [next(ahead), next(ahead)] == [0, 1]
    assert len(produced) <= 5
    assert isinstance(ahead, Generator)
    ahead.close()
    assert not [thread for thread in threading.enumerate() if "prefetch" in thread.name]
    assert len(produced) <= 5


def test_an_error_of_the_loader_reaches_the_loop_at_its_batch() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise OSError("the disk has gone")

    ahead = iter(prefetch(source(), 4))
    assert next(ahead) == 1
    with pytest.raises(OSError, match="the disk has gone"):
        next(ahead)


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
def test_damaged_shards_are_named(
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
        *((text, "") for text in ("", "{", "[1]", "[" * 100_000, '{"format": "x"}')),
    ],
)
def test_a_manifest_that_violates_the_format_is_named(
    shards: Path, change: dict[str, Any] | str, sentence: str
) -> None:
    path = shards / MANIFEST
    if isinstance(change, dict):
        change = json.dumps(json.loads(path.read_text()) | change)
    path.write_text(change)
    with pytest.raises(ValueError, match=re.escape(str(path))) as refused:
        read_data(shards)
    assert sentence in str(refused.value)


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


def test_the_command_writes_shards_once_and_into_a_new_folder(texts: Path, tmp_path: Path) -> None:
    arguments = [str(texts), str(tmp_path / "to"), "--tokens-per-shard", "2000"]
    result = CliRunner().invoke(command, arguments)
    assert "2 shards, 2500 tokens in all" in result.stdout
    repeated = CliRunner().invoke(command, arguments)
    assert repeated.exit_code == 2
    assert "exists already" in repeated.stderr
