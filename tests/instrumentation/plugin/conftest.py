"""A folder of jobs on a tmpfs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .played import empty_root


@pytest.fixture
def root() -> Iterator[Path]:
    """Empty, and removed with what ranks have left in it."""
    with empty_root() as folder:
        yield folder
