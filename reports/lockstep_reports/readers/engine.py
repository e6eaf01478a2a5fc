"""Where the parts of a recording are read: in threads of this process, or by the workers of a Ray.

Which parts there are, and what is asked of them, is the reader's; when and where each runs, and
what becomes of one whose worker died, is the engine's.
"""

import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from itertools import chain
from typing import Any, Protocol, TypeVar

ENGINES = ("local", "ray")
_STREAMS = 16  # a store answers each after tens of milliseconds
_PARTS_OF_TASK = 32
_TASKS_AHEAD = 2  # of each processor: what is done and not taken yet fills memory
_MAX_RETRIES = 4
_CONNECT_SECONDS = 10.0
Item = TypeVar("Item")
Result = TypeVar("Result")


class Engine(Protocol):
    """Applies a function to items and gives the results in their order, a few at a time."""

    def __call__(
        self, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> Iterator[Result]:
        """What the function raises for an item is raised in its turn."""


def run_here(
    function: Callable[[Item], Result], items: Sequence[Item], *, is_local: bool
) -> Iterator[Result]:
    """An engine of threads; on local files more of them than processors wait for each other."""
    streams = len(os.sched_getaffinity(0)) if is_local else _STREAMS
    with ThreadPoolExecutor(streams) as pool:
        yield from _take_in_order(
            (pool.submit(function, item) for item in items), streams, lambda each: each.result()
        )


def find_engine(name: str, address: str | None) -> Engine | None:
    """An engine by its name, None for ``local``; ValueError where there is none.

    A Ray runs a task again whose worker died.
    """
    if name == "local":
        if address is not None:
            raise ValueError("--address is that of a Ray; add --engine ray, or leave it out")
        return None
    try:
        ray: Any = import_module("ray")
    except ImportError as error:
        raise ValueError("--engine ray needs Ray; pip install ray") from error
    if not ray.is_initialized():
        try:
            _connect(address or os.environ.get("RAY_ADDRESS", ""))
            ray.init(address=address, log_to_driver=False, logging_level="error")
        except (OSError, OverflowError, ValueError, RuntimeError) as error:
            raise ValueError(f"no Ray answers at --address {address}: {error}") from error

    def run(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        # The number of threads of a library inside a task is Ray's, one for each processor.
        task = ray.remote(max_retries=_MAX_RETRIES)(_apply)
        shared = ray.put(function)
        most = _TASKS_AHEAD * max(1, int(ray.cluster_resources().get("CPU", os.cpu_count() or 1)))
        begins = range(0, len(items), _PARTS_OF_TASK)
        tasks = (task.remote(shared, items[at : at + _PARTS_OF_TASK]) for at in begins)
        yield from chain.from_iterable(_take_in_order(tasks, most, ray.get))

    return run


def _connect(address: str) -> None:
    """Raises OSError where nothing listens; Ray by itself asks for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()


def _apply(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    return [function(item) for item in items]


def _take_in_order(
    begun: Iterator[Item], most: int, take: Callable[[Item], Result]
) -> Iterator[Result]:
    """Results in the order of what was begun, of which never more than so many are kept."""
    waiting: deque[Item] = deque()
    for each in begun:
        waiting.append(each)
        if len(waiting) >= most:
            yield take(waiting.popleft())
    while waiting:
        yield take(waiting.popleft())
