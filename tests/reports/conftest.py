"""Fixtures of the tests of reports."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep_records.files.jobs import CANDIDATE_ROOTS


@pytest.fixture(name="page_root")
def _page_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A root of jobs on the tmpfs that pages need; commands read it."""
    with tempfile.TemporaryDirectory(dir=CANDIDATE_ROOTS[-1].parent) as folder:
        monkeypatch.setenv("LOCKSTEP_DIR", folder)
        yield Path(folder)
