"""What the tests of the trainer have in common."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(name="memory")
def _memory() -> Iterator[Path]:
    """An empty folder on the tmpfs that rank pages need."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="lockstep-test-") as folder:
        yield Path(folder)


@pytest.fixture(name="module_memory", scope="module")
def _module_memory() -> Iterator[Path]:
    """The same for all tests of a module."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="lockstep-test-") as folder:
        yield Path(folder)
