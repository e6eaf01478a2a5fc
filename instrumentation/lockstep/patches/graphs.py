"""Marks the replay of a CUDA graph: a step inside it is one block, with its begin and end."""

import functools
from collections.abc import Callable
from typing import Any

from lockstep.patches import waits
from lockstep.recorder.phases import DATA, FORWARD, INIT, OTHER

# Inside any other phase it is a part of that, as in a compiled forward.
_OUTSIDE = frozenset({INIT, DATA, OTHER})


def wrap_replay(original: Callable[..., Any]) -> Callable[..., Any]:
    """Counts a graph that is replayed between phases as forward, whatever it holds."""

    @functools.wraps(original)
    def replay(self: Any) -> Any:
        recorder = waits.recorder_of_this_thread()
        if recorder is None or recorder.phase not in _OUTSIDE:
            return original(self)
        recorder.enter_code(FORWARD)
        try:
            return original(self)
        finally:
            recorder.enter_code(OTHER)

    return replay
