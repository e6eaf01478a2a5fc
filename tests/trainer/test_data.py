import math
import threading
from collections.abc import Generator, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from lockstep_trainer.data.batches import Batches, prefetch, shuffled
from lockstep_trainer.data.corpus import Corpus, read_corpus, read_text_folder, standard_library
from lockstep_trainer.data.shards import read_data

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


def test_the_entropy_of_two_equally_frequent_bytes_is_the_logarithm_of_two(tmp_path: Path) -> None:
    (tmp_path / "source.py").write_bytes(b"ab" * 500)
    assert read_corpus(tmp_path).unigram_entropy == pytest.approx(math.log(2))


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


def test_no_two_ranks_see_the_same_window_in_a_step_and_epochs_differ() -> None:
    per_epoch = batches()._steps_per_epoch
    for step in (1, per_epoch, per_epoch + 1, 5 * per_epoch):
        starts = [start for rank in range(3) for start in batches(rank=rank).starts_at(step)]
        assert len(set(starts)) == 12
    first, second = batches().starts_at(1), batches().starts_at(per_epoch + 1)
    assert not np.array_equal(first, second)


def test_a_shuffle_moves_every_index_to_every_position_equally_often() -> None:
    counts = np.zeros((12, 12))
    for epoch in range(3000):
        counts[np.arange(12), shuffled(np.arange(12), 12, seed=0, epoch=epoch)] += 1
    # Null hypothesis: uniform positions, so 12 x 12 cells of 250 expected and 11 x 11 degrees of
    # freedom, rounded up to 121; mean 121 and variance 242. Four standard deviations: one in 10^4.
    chi_squared = ((counts - 250) ** 2 / 250).sum()
    assert chi_squared < 121 + 4 * math.sqrt(2 * 121)


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
