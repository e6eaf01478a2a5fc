"""Monitors end with the test that made them, as they end with a process elsewhere."""

import atexit
from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def monitors_end_with_the_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    ends: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
    monkeypatch.setattr(atexit, "register", lambda end, *args: ends.append((end, args)))
    yield
    for end, args in ends:
        end(*args)
