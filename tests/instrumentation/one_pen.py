"""A recorder by itself: with a page and an owner that notes what it is asked."""

import math
from pathlib import Path
from typing import Any

from lockstep.recorder import native
from lockstep.recorder.recorder import StepRecorder
from lockstep_records.page.layout import COLLECTIVE_KINDS, PERIODIC
from lockstep_records.page.reader import read_page, read_rows
from lockstep_records.page.writer import PageWriter, RankIdentity


class RecorderCallbacks:
    """Notes what a recorder asks, and answers with the flag that says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.failures = 0

    def tick(self, _now_ns: int) -> int:
        return 1 << 62

    def inspect_loss(self, loss: float) -> int:
        self.asked.append(("loss", repr(loss)))
        return 1 if math.isfinite(loss) else 16

    def inspect_norm(self, norm: float) -> int:
        self.asked.append(("norm", repr(norm)))
        return 16

    def inspect_step(self, number: int, seconds: Any) -> int:
        self.asked.append(("step", number, len(seconds)))
        return 4

    def step_ended(self, _now_ns: int, number: int, steps: int, _seconds: float) -> None:
        self.asked.append(("ended", number, steps))

    def step_while_off(self, number: int | None) -> None:
        self.asked.append(("off", number))

    def fail(self, _error: Exception) -> None:
        self.failures += 1


class One:
    """A recorder with its page and its owner."""

    def __init__(self, root: Path, name: str) -> None:
        self.path = root / f"{name}.page"
        self.page = PageWriter(self.path, RankIdentity(job_id=name, rank=0, world_size=1), 64)
        self.callbacks = RecorderCallbacks()
        make: Any = StepRecorder if name == "python" else native.new_recorder
        self.recorder: StepRecorder = make(self.page, self.callbacks)
        self.raised: list[type[BaseException]] = []

    def do(self, name: str, *args: Any, **told: Any) -> object:
        try:
            return getattr(self.recorder, name)(*args, **told)
        except (TypeError, ValueError) as error:
            self.raised.append(type(error))
            return None

    def wait(self, kind: str | None, size_bytes: int, ranks: int | None) -> None:
        interrupted = self.recorder.wait_begins()
        self.do("wait_ended", interrupted, kind, 2, size_bytes, ranks)

    def left(self) -> tuple[object, ...]:
        """All that it left but moments and durations."""
        page = read_page(self.path)
        timed = {"written_ns", "phase_seconds", "collective_seconds", "step_seconds_sum"}
        timed |= {"step_buckets", "checksum"}
        state = {name: value for name, value in page.state.items() if name not in timed}
        first = PERIODIC.word("bus_bytes")
        bus = self.page.periodic.words.tolist()[first : first + len(COLLECTIVE_KINDS)]
        rows = [
            {
                name: value is not None if name.endswith("_ns") else repr(value)
                for name, value in row.items()
                if not name.endswith("seconds") and name != "checksum"
            }
            for row in read_rows(page)
        ]
        losses = self.recorder.take_losses()
        told = (
            repr(losses),
            self.callbacks.asked,
            self.raised,
            self.recorder.next_step,
            self.recorder.now_in,
        )
        return repr(state), bus, rows, *told
