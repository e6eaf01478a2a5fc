"""Fixtures of the trainer's tests."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(name="module_memory", scope="module")
def _module_memory() -> Iterator[Path]:
    """A folder on the tmpfs for all tests of a module."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="lockstep-test-") as folder:
        yield Path(folder)
