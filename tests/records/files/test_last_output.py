"""The end of a rank's output is bounded, survives anything, and holds no secrets."""

import json
from pathlib import Path

import pytest

from lockstep_records.files.last_output import (
    MAX_OUTPUT_BYTES,
    OutputRing,
    RankError,
    read_error,
    read_output,
    read_torchrun_error,
    write_error,
)


@pytest.fixture(name="page")
def _page(memory: Path) -> Path:
    return memory / "rank-00003.page"


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 200_000])
@pytest.mark.parametrize("chunk", [7, 65_536, 300_000])
def test_the_ring_holds_the_last_bytes_whatever_the_writes(
    page: Path, size: int, chunk: int
) -> None:
    data = "".join(f"line {number}\n" for number in range(40_000)).encode()[:size]
    ring = OutputRing(page)
    for at in range(0, size, chunk):
        ring.write(data[at : at + chunk])
    ring.close()
    text = read_output(page)
    assert text is not None
    assert data.decode().endswith(text)
    assert len(text) > min(size, MAX_OUTPUT_BYTES) - 20
    assert page.with_suffix(".stderr").stat().st_size == MAX_OUTPUT_BYTES + 16


@pytest.mark.parametrize("content", [b"", b"LKSTERR1", b"x" * (MAX_OUTPUT_BYTES + 16)])
def test_a_file_that_is_no_ring_is_no_output(page: Path, content: bytes) -> None:
    page.with_suffix(".stderr").write_bytes(content)
    assert read_output(page) is None


def test_an_error_is_read_as_it_was_written(page: Path) -> None:
    error = RankError(
        source="except_hook", type="ValueError", message="a\nb", file="train.py", line=7,
        function="main", traceback="Traceback", time=12.5,
    )  # fmt: skip
    write_error(page, error)
    assert read_error(page) == error
    assert str(error) == "ValueError: a (train.py:7, in main)"


@pytest.mark.parametrize("content", ["", "[]", '{"version": 2}', '{"version": 1, "source": "me"}'])
def test_a_file_that_is_no_error_of_ours_is_none(page: Path, content: str) -> None:
    page.with_suffix(".error.json").write_text(content)
    assert read_error(page) is None


def test_the_error_file_of_torchrun_is_read(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    extra = {"py_callstack": "Traceback ...", "timestamp": "1700000000"}
    content = {"message": {"message": "RuntimeError: out of luck", "extraInfo": extra}}
    path.write_text(json.dumps(content))
    assert read_torchrun_error(path) == RankError(
        source="torchrun", type="RuntimeError", message="out of luck", traceback="Traceback ...",
        time=1700000000.0,
    )  # fmt: skip
    path.write_text(json.dumps({"message": "plain text"}))
    assert read_torchrun_error(path) == RankError(source="torchrun", type="", message="plain text")
    for content_text in ("", "{}", '{"message": 3}', '{"message": {"message": 3}}'):
        path.write_text(content_text)
        assert read_torchrun_error(path) is None
