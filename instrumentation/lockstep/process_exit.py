"""Waits at the end of a process until gloo's threads are idle.

A thread of gloo that drops a tensor of Python's while the interpreter ends makes torch abort the
process ("terminate called without an active exception", pytorch/pytorch#190489), where a loop has
not destroyed its process group. A rank that has trained to its end would be one that failed.
"""

import sys
import time
from pathlib import Path

from lockstep.ranks import is_group_ready

_THREADS = Path("/proc/self/task")
_NAME = "pt_gloo_runloop"
_TIMEOUT_SECONDS = 0.5
_POLL_SECONDS = 0.001
# A thread that waits for the interpreter's lock sleeps too, until this one sleeps.
_IDLE_POLLS = 2


def wait_for_gloo(timeout_seconds: float = _TIMEOUT_SECONDS) -> None:
    """Returns once gloo's threads wait for work, or after the time-out."""
    if "torch.distributed" not in sys.modules or not is_group_ready():
        return
    threads = [task for task in _THREADS.iterdir() if _read(task / "comm").strip() == _NAME]
    deadline = time.monotonic() + timeout_seconds
    num_idle_polls = 0
    while num_idle_polls < _IDLE_POLLS and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        is_idle = all(_is_asleep(task) for task in threads)
        num_idle_polls = num_idle_polls + 1 if is_idle else 0


def _is_asleep(thread: Path) -> bool:
    state = _read(thread / "stat").rpartition(")")[2].split()
    return not state or state[0] == "S"


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the thread has ended
        return ""
