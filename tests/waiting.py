"""Waits for what other processes and threads do, and a port for a server of them."""

import socket
import time
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")


def wait_until(
    condition: Callable[[], Answer], seconds: float = 60, says: Callable[[], object] = str,
    *, pause: float = 0.02,
) -> Answer:  # fmt: skip
    """What the condition answers once it is true; after so many seconds a failure that ``says``."""
    end = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < end, says()
        time.sleep(pause)
    return answer


def free_port() -> int:
    """One that nobody had a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
