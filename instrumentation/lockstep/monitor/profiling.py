"""A trace of the next steps by torch.profiler, when a switch asks for it.

The rank writes the trace into memory, next to its page; ``lockstep profile`` moves it to a disk.
Starting (about a second the first time), stopping and writing hold up this rank's step: the log and
a small file next to the trace say how long. On a GPU stopping waits for the device.
"""

import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from lockstep_records.file_access.own_files import replace_own_file
from lockstep_records.files.rank_files import answer_path, trace_path
from lockstep_records.files.switches import ProfileRequest

log = logging.getLogger("lockstep")
_FREE_BYTES = 256 << 20  # that must be free on the tmpfs before a trace is taken


class Profiler:
    """Answers each request for a trace once.

    Attributes:
        running: whether a trace is being taken.
    """

    def __init__(self, page: Path, rank: int) -> None:
        self.running = False
        self._page, self._rank = page, rank
        self._answered = ""
        self._profile: Any = None
        self._request: ProfileRequest | None = None
        self._steps_left = 0
        self._stalls: dict[str, float] = {}

    def begin(self, request: ProfileRequest) -> None:
        """Starts the trace, unless the request is for others, was answered or cannot be met."""
        is_for_us = request.ranks is None or self._rank in request.ranks
        if not is_for_us or self.running or request.id == self._answered:
            return
        self._answered, self._request = request.id, request
        # A rank that was restarted meets the request of before again.
        if answer_path(self._page, request.id).exists():
            return
        if refusal := self._refusal():
            self._answer({"error": refusal})
            return
        before = time.perf_counter()
        import torch.profiler  # noqa: PLC0415  # torch is loaded already

        self._profile = torch.profiler.profile()
        self._profile.start()
        self._stalls = {"start_seconds": time.perf_counter() - before}
        self._steps_left, self.running = request.steps, True

    def _refusal(self) -> str:
        if "torch" not in sys.modules:
            return "the process has not loaded torch"
        free = os.statvfs(self._page.parent)
        if free.f_bavail * free.f_frsize < _FREE_BYTES:
            return f"{self._page.parent} has less than {_FREE_BYTES >> 20} MiB free"
        return ""

    def step_ended(self) -> None:
        """Counts a step; after the last one the trace is written."""
        assert self._request is not None
        self._steps_left -= 1
        if self._steps_left:
            return
        self.running = False
        before = time.perf_counter()
        self._profile.stop()
        stopped = time.perf_counter()
        path = trace_path(self._page, self._request.id)
        temporary_path = path.with_name(f".{path.name}")
        self._profile.export_chrome_trace(str(temporary_path))
        temporary_path.replace(path)  # `lockstep profile` waits for this name
        self._profile = None
        written = time.perf_counter()
        self._stalls |= {"stop_seconds": stopped - before, "export_seconds": written - stopped}
        self._answer({**self._stalls, "bytes": path.stat().st_size, "steps": self._request.steps})

    def give_up(self) -> None:
        """Ends a trace that is being taken; nothing is written."""
        self.running = False
        profile, self._profile = self._profile, None
        if profile is not None:
            profile.stop()  # torch would go on recording, and crash at the end of the process

    def _answer(self, outcome: dict[str, Any]) -> None:
        assert self._request is not None
        path = answer_path(self._page, self._request.id)
        replace_own_file(path, json.dumps({"rank": self._rank, **outcome}))
        log.warning("profile %s of rank %d: %s", self._request.id, self._rank, outcome)
