"""A page stays intact whatever happens to its writer, also for readers at the same time."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from lockstep_records.page.reader import Page, PageError, read_page, read_rows

from ..killed_writers import killed_files

READING_SECONDS = 1.0
CYCLE = (1, 10, 100)


@contextmanager
def hammering(path: Path) -> Iterator[None]:
    """A process that writes the page in a hot loop; ready when the page can be read."""
    program = f"from sample_pages import hammer; hammer({str(path)!r})"
    with subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).parents[2]) as writer:
        try:
            deadline = time.monotonic() + 40
            while not readable(path):
                assert time.monotonic() < deadline, "the writer never began"
                time.sleep(0.001)
            yield
        finally:
            writer.kill()


def readable(path: Path) -> bool:
    try:
        return bool(read_page(path).state["steps"])
    except PageError:
        return False


def tokens_until(steps: int) -> int:
    return steps // len(CYCLE) * sum(CYCLE) + sum(CYCLE[: steps % len(CYCLE)])


def assert_totals_fit(page: Page) -> None:
    state = page.state
    steps = state["steps"]
    assert state["tokens"] == tokens_until(steps)
    assert state["samples"] == 4 * steps
    assert state["phase_seconds"]["backward"] == 0.5 * steps
    assert sum(state["step_buckets"].values()) == steps
    assert state["step_seconds_sum"] == 0.875 * steps


def test_a_page_is_intact_up_to_its_last_step_whenever_its_rank_is_killed(memory: Path) -> None:
    for path in killed_files(memory, "hammer", ".page", readable):
        page = read_page(path)
        assert_totals_fit(page)
        rows, steps = read_rows(page), page.state["steps"]
        newest = rows[-1]["number"] + 1
        assert newest - steps in {0, 1}
        assert [row["number"] for row in rows] == list(range(newest - len(rows), newest))
        assert len(rows) >= min(63, steps), "only the row being written may be missing"
        assert [row["tokens"] for row in rows] == [CYCLE[row["number"] % 3] for row in rows]


def test_a_reader_beside_the_writer_reads_only_intact_states_that_never_go_back(
    memory: Path,
) -> None:
    path = memory / "rank-00000.page"
    with hammering(path):
        sequences = list(islice(states(path, time.monotonic() + READING_SECONDS), 1_000_000))
    assert len(sequences) > 100
    assert sequences == sorted(sequences)
    assert sequences[-1] > sequences[0]


def states(path: Path, until: float) -> Iterator[int]:
    """The sequence of every state read until a moment, each checked."""
    while time.monotonic() < until:
        page = read_page(path)
        assert_totals_fit(page)
        yield page.state["sequence"]


def test_rows_read_beside_the_writer_are_intact_and_in_order(memory: Path) -> None:
    path = memory / "rank-00000.page"
    with hammering(path):
        for _ in range(300):
            rows = read_rows(read_page(path))
            numbers = [row["number"] for row in rows]
            assert numbers == sorted(numbers)
            assert all(row["tokens"] == CYCLE[row["number"] % 3] for row in rows)
