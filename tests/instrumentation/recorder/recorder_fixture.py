"""A recorder by itself: with a page, and callbacks that note their calls."""

import math
from pathlib import Path
from typing import Any

from lockstep.recorder import native
from lockstep.recorder.interface import StepRecorder
from lockstep.recorder.plain import PlainRecorder
from lockstep_records.page.layout import COLLECTIVE_KINDS, PERIODIC
from lockstep_records.page.reader import read_page, read_rows
from lockstep_records.page.writer import PageWriter, RankIdentity


class NotedCallbacks:
    """Notes each call of a recorder, and returns a flag that says which it was."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.failures = 0

    def tick(self, _now_ns: int) -> int:
        return 1 << 62

    def inspect_loss(self, loss: float) -> int:
        self.calls.append(("loss", repr(loss)))
        return 1 if math.isfinite(loss) else 16

    def inspect_norm(self, norm: float) -> int:
        self.calls.append(("norm", repr(norm)))
        return 16

    def inspect_step(self, number: int, seconds: Any) -> int:
        self.calls.append(("step", number, len(seconds)))
        return 4

    def step_ended(self, _now_ns: int, number: int, steps: int, _seconds: float) -> None:
        self.calls.append(("ended", number, steps))

    def step_while_off(self, number: int | None) -> None:
        self.calls.append(("off", number))

    def fail(self, _error: Exception) -> None:
        self.failures += 1

    def late_numbers(self, rows: Any) -> bool:
        self.calls.append(("late", len(rows)))
        return True

    def part_failed(self, part: str, error: Exception) -> None:
        self.calls.append(("part", part, type(error)))


class RecorderFixture:
    """A recorder with its page and its callbacks; the plain one where ``name`` begins so."""

    def __init__(self, root: Path, name: str = "c") -> None:
        self.path = root / f"{name}.page"
        self.page = PageWriter(self.path, RankIdentity(job_id=name, rank=0, world_size=1), 64)
        self.callbacks = NotedCallbacks()
        create = PlainRecorder if name.startswith("plain") else native.new_recorder
        self.recorder: StepRecorder = create(self.page, self.callbacks)
        self.raised: list[type[BaseException]] = []

    def call(self, name: str, *args: Any, **kwargs: Any) -> object:
        """Calls a method of the recorder; notes the exception that it raises."""
        try:
            return getattr(self.recorder, name)(*args, **kwargs)
        except (TypeError, ValueError) as error:
            self.raised.append(type(error))
            return None

    def wait(self, kind: str | None, size_bytes: int, ranks: int | None) -> None:
        interrupted = self.recorder.wait_begins()
        self.call("wait_ended", interrupted, kind, 2, size_bytes, ranks)

    def outcome(self) -> tuple[object, ...]:
        """All that the recorder has written, but for moments and durations."""
        page = read_page(self.path)
        times = {"written_ns", "phase_seconds", "collective_seconds", "step_seconds_sum"}
        times |= {"step_buckets", "checksum"}
        state = {name: value for name, value in page.state.items() if name not in times}
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
        calls = (
            repr(losses),
            self.callbacks.calls,
            self.raised,
            self.recorder.next_step,
            self.recorder.phase,
        )
        return repr(state), bus, rows, *calls
