import math
from pathlib import Path

import numpy as np
import pytest
import torch

from lockstep_trainer.data import Batches, read_corpus, standard_library

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
    assert corpus.train.tobytes() + corpus.held_out.tobytes() == b"a.pyb/two.py"


def test_one_changed_byte_changes_the_checksum(tmp_path: Path) -> None:
    source = tmp_path / "one.py"
    source.write_bytes(b"x" * 100)
    before = read_corpus(tmp_path).sha256
    source.write_bytes(b"x" * 99 + b"y")
    assert read_corpus(tmp_path).sha256 != before


def test_a_folder_without_sources_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"corpus folder {tmp_path} holds no Python source"):
        read_corpus(tmp_path)


def test_the_entropy_of_two_equally_frequent_bytes_is_the_logarithm_of_two(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_bytes(b"ab" * 500)
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
    whole = list(batches(rank=1))
    resumed = list(batches(rank=1, first=31))
    assert [step for step, *_ in resumed] == list(range(31, 41))
    for (_, x, y), (_, again_x, again_y) in zip(whole[30:], resumed, strict=True):
        assert torch.equal(x, again_x)
        assert torch.equal(y, again_y)


def test_targets_are_the_inputs_one_byte_later() -> None:
    step, x, y = next(iter(batches()))
    assert (step, x.shape, x.dtype) == (1, (4, 16), torch.int64)
    assert torch.equal(x[:, 1:], y[:, :-1])


def test_another_seed_gives_another_order() -> None:
    _, x, _ = next(iter(batches(seed=3)))
    _, other, _ = next(iter(batches(seed=4)))
    assert not torch.equal(x, other)


def test_a_text_too_short_for_one_step_is_refused_by_flag() -> None:
    with pytest.raises(ValueError, match=r"--batch 8 and --sequence 128 on 4 ranks need more than"):
        Batches(
            text=TEXT,
            sequence=128,
            batch=8,
            rank=0,
            num_ranks=4,
            seed=0,
            first_step=1,
            last_step=1,
        )
