"""A folder of jobs on a tmpfs."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def root() -> Iterator[Path]:
    """Empty, and removed with what ranks have left in it."""
    folder = Path(tempfile.mkdtemp(prefix="nccl-", dir="/dev/shm"))  # its own folder
    yield folder
    shutil.rmtree(folder)
