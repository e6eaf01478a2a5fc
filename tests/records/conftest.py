"""A folder on a tmpfs for every test that writes pages."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def memory() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="lockstep-test-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
