"""What a step leaves in the page: a row, its share of the totals, and the numbers of the loop."""

import math
import operator
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from lockstep.guard import outcome_of
from lockstep.recorder.device_numbers import DeviceNumbers
from lockstep.recorder.device_rows import DeviceRows
from lockstep.recorder.lengths import MAX_COUNT, NO_LENGTHS, Lengths, lengths_of
from lockstep.recorder.phases import DATA, FLAG, INIT, NUM_PHASES, OTHER
from lockstep.recorder.run_queue import RunQueueWait
from lockstep_catalogue.labels import STEP_PHASES
from lockstep_records.page.layout import PHASES, ROW, ROW_NUMBERS, SLOT
from lockstep_records.page.writer import PageWriter, pack_row

R = TypeVar("R")
_NS = 1e-9
_LARGEST = 3.4e38  # a row has single precision; a loss beyond it is as good as infinite
_PRESENT = SLOT.word("present")
_NONFINITE = SLOT.word("nonfinite_steps")
_STEPS = SLOT.word("steps")
_LOSS, _NORM, _RATE = (SLOT.word(name) for name in ("loss", "gradient_norm", "learning_rate"))
_INIT, _DATA, _FORWARD, _BACKWARD, _SYNC, _OPTIMIZER, _CHECKPOINT, _EVAL, _OTHER, _RESTORE = (
    SLOT.word("phase_seconds") + code for code in range(NUM_PHASES - 2)
)
assert PHASES[INIT] == "init"
assert PHASES[DATA : OTHER + 1] == STEP_PHASES
assert PHASES[OTHER + 1 :] == ("restore", "done", "failed")
_STEP_BIT = SLOT.presence["step"]
_LOSS_BIT, _NORM_BIT, _RATE_BIT = (
    SLOT.presence[name] for name in ("loss", "gradient_norm", "learning_rate")
)
_ROW_LOSS_BIT, _ROW_NORM_BIT = ROW.presence["loss"], ROW.presence["gradient_norm"]
_FIRST_BIT, _LAST_BIT = ROW.presence["first_arrival_ns"], ROW.presence["last_arrival_ns"]
LENGTH_BITS = sum(
    ROW.presence[name] for name in ("sequence_min", "sequence_max", "sequence_squares")
)
StepSeconds: TypeAlias = tuple[float, float, float, float, float, float, float, float]
RowNumbers: TypeAlias = tuple[float, float, int, int]  # loss, gradient norm, tokens, samples
_MIN_STEP, _MAX_STEP = -(1 << 63), (1 << 63) - 2
LOSSES = 128  # buffered until they are taken: more than a window of the judge
_NONFINITE_FLAG, _PENDING_FLAG = FLAG["nonfinite"], FLAG["device_pending"]


class RecorderCallbacks(Protocol):
    """What a recorder calls when one comparison says that something is due or unusual."""

    def tick(self, now_ns: int) -> int:
        """A phase began after ``due_ns``; returns the next one."""

    def inspect_loss(self, loss: float) -> int:
        """A loss is not within ``loss_floor`` and ``loss_bound``; returns the step's flags."""

    def inspect_norm(self, norm: float) -> int:
        """A gradient norm is one that no row can hold; returns the step's flags."""

    def inspect_step(self, number: int, seconds: Sequence[float]) -> int:
        """A step took longer than ``usual_seconds``, by phase; returns its flags."""

    def part_failed(self, part: str, error: Exception) -> None:
        """A part has failed, such as reading a number of the loop's; the step goes on."""

    def step_ended(self, now_ns: int, number: int, steps: int, seconds: float) -> None:
        """A row is written; the step is slow, or one of ``wake_*`` is due."""

    def step_while_off(self, number: int | None) -> None:
        """The loop ended a step while the recorder is off."""

    def fail(self, error: Exception) -> None:
        """An error of ours was caught in the loop."""


class Rows:
    """The part of a recorder that writes rows. It runs in every step and is written for speed.

    Attributes:
        flags: of the step that runs now, so far.
        numbers: reads numbers that are on a GPU; None where the process uses none.
        device_rows: rows that wait for a GPU; None where the process uses none.
        loss_floor, loss_bound: a loss above the one and up to the other needs no judgement.
        lasting_flags: of each step with such a loss.
        usual_seconds: a step up to that long needs no judgement.
        slow_seconds: a step up to that long has no span.
    """

    def __init__(self, page: PageWriter, callbacks: RecorderCallbacks) -> None:
        self._page, self._callbacks = page, callbacks
        self._losses: deque[float] = deque(maxlen=LOSSES)
        self._spent_ns: list[float] = [0] * NUM_PHASES
        self._begun_ns = 0  # the step that runs now
        self._present = 0  # presence bits of the slot that the last step has set
        self._first_arrival_ns = self._last_arrival_ns = 0
        self.next_step = 0
        self.flags = 0
        self.numbers: DeviceNumbers | None = None
        self.device_rows: DeviceRows | None = None
        self._run_queue = RunQueueWait(page)
        self.loss_floor, self.loss_bound = -math.inf, math.inf
        self.lasting_flags = 0
        self.usual_seconds = math.inf
        self.slow_seconds = 0.0

    def _take_numbers(self, loss: Any, norm: Any, rate: Any) -> tuple[int, int, float, float]:
        """Takes in the loop's numbers; returns flags, presence, loss and norm for the row."""
        floats, slot_bits, present, flags = self._page.floats, _STEP_BIT, 0, self.flags
        row_loss = row_norm = 0.0
        if self.numbers is not None:
            self.numbers.take(self.next_step - 1, loss, norm, rate)
        # Three floats are the usual case, and need no conversion.
        if not type(loss) is type(norm) is type(rate) is float:
            loss, norm, rate = self._read(loss), self._read(norm), self._read(rate)
        if loss is not None:
            floats[_LOSS] = row_loss = loss
            slot_bits, present = slot_bits | _LOSS_BIT, _ROW_LOSS_BIT
            if self.loss_floor < loss <= self.loss_bound:
                self._losses.append(loss)
                flags |= self.lasting_flags
            else:
                flags |= self._callbacks.inspect_loss(loss)
            if not -_LARGEST < loss < _LARGEST:
                row_loss = _fitting(loss)
        if norm is not None:
            floats[_NORM] = row_norm = norm
            slot_bits, present = slot_bits | _NORM_BIT, present | _ROW_NORM_BIT
            if not -_LARGEST < norm < _LARGEST:
                row_norm = _fitting(norm)
                flags |= self._callbacks.inspect_norm(norm)
        if rate is not None:
            floats[_RATE] = rate
            slot_bits |= _RATE_BIT
        if slot_bits != self._present or flags:
            self._update_slot(slot_bits, flags)
        return flags, present, row_loss, row_norm

    def _unless_failed(self, outcome: R | Exception) -> R | None:
        """What was read; None where it cannot be read, and the step goes without it."""
        if isinstance(outcome, Exception):
            self._callbacks.part_failed("loop_numbers", outcome)
            return None
        return outcome

    def _read(self, value: Any) -> float | None:
        """A number of the loop's; None where it has none."""
        return self._unless_failed(outcome_of(number_of, value))

    def _take_step_number(self, step: Any) -> int:
        """Number of the step that ends, by the loop or by our own count."""
        number = self.next_step
        if step is not None:
            read = self._unless_failed(outcome_of(_integer_of, step, "step", _MIN_STEP, _MAX_STEP))
            number = number if read is None else read
        self.next_step = number + 1
        return number

    def _take_counts(
        self, tokens: Any, samples: Any, sequence_lengths: Sequence[int]
    ) -> tuple[int, int, Lengths]:
        """Tokens, samples and lengths of the step; the counts are the lengths' where left out."""
        if not (type(tokens) is type(samples) is int and 0 <= tokens | samples <= MAX_COUNT):
            read, most = self._unless_failed, MAX_COUNT
            tokens = read(outcome_of(_integer_of, tokens, "tokens", 0, most)) or 0
            samples = read(outcome_of(_integer_of, samples, "samples", 0, most)) or 0
        if type(sequence_lengths) is tuple and not sequence_lengths:
            return tokens, samples, NO_LENGTHS
        lengths = self._unless_failed(outcome_of(lengths_of, sequence_lengths)) or NO_LENGTHS
        return tokens or lengths[2], samples or lengths[3], lengths

    def _update_slot(self, slot_bits: int, flags: int) -> None:
        """The loop passes other numbers than in the step before, or the step has flags."""
        words = self._page.words
        words[_PRESENT] |= slot_bits
        words[_NONFINITE] += bool(flags & _NONFINITE_FLAG)
        self._present, self.flags = slot_bits, 0

    def take_losses(self) -> list[float]:
        """The last losses that needed no judgement, each returned once."""
        losses = [*self._losses]
        self._losses.clear()
        return losses

    def take_phases(self) -> StepSeconds:
        """Seconds of the step's phases, in the order of the row; adds them to the totals."""
        parts = self._end_phases()
        self._count_phases(parts)
        return parts

    def _count_phases(self, parts: StepSeconds) -> None:
        data, forward, backward, sync, optimizer, saving, scoring, other = parts
        floats = self._page.floats
        floats[_DATA] += data
        floats[_FORWARD] += forward
        floats[_BACKWARD] += backward
        floats[_SYNC] += sync
        floats[_OPTIMIZER] += optimizer
        floats[_OTHER] += other
        floats[_CHECKPOINT] += saving
        floats[_EVAL] += scoring

    def _end_phases(self) -> StepSeconds:
        """Seconds of the step's phases; adds to the totals only what is outside of steps."""
        init, data, forward, backward, sync, optimizer, saving, scoring, other, restore, *_ = (
            self._spent_ns
        )
        self._spent_ns = [0] * NUM_PHASES
        if init or restore:  # they count in the totals only: the step begins after them
            self._page.floats[_INIT] += init * _NS
            self._page.floats[_RESTORE] += restore * _NS
            self._begun_ns += int(init + restore)
        data, forward, backward, sync = data * _NS, forward * _NS, backward * _NS, sync * _NS
        optimizer, saving, scoring = optimizer * _NS, saving * _NS, scoring * _NS
        return data, forward, backward, sync, optimizer, saving, scoring, other * _NS

    def _write_row(  # noqa: PLR0917  # keywords cost time, and it is called once
        self, now: int, number: int, flags: int, present: int, numbers: RowNumbers, lengths: Lengths
    ) -> tuple[int, float]:
        """Writes the step's row, makes the state readable; returns rows so far and seconds."""
        page = self._page
        parts = self._end_phases()
        begun = self._begun_ns
        self._begun_ns = now
        total = (now - begun) * _NS
        if total > self.usual_seconds:
            flags |= self._callbacks.inspect_step(number, parts)
        first, last = self._first_arrival_ns, self._last_arrival_ns
        if last:
            present |= _LAST_BIT
            self._last_arrival_ns = 0
        if first:
            present |= _FIRST_BIT
            self._first_arrival_ns = 0
        if lengths is not NO_LENGTHS:
            present |= LENGTH_BITS
        if self.device_rows is not None and self.device_rows.end_step(now, parts, total):
            flags |= _PENDING_FLAG
        if now >= self._run_queue.due_ns:
            self._run_queue.take(now)
        present |= page.take_noted()
        (loss, norm, tokens, samples), (shortest, longest, _, _, squares) = numbers, lengths
        # Each by its name: unpacking a tuple into the call takes twice as long as the packing.
        data, forward, backward, sync, optimizer, saving, scoring, other = parts
        # fmt: off
        pack_row(
            page.row, 0, page.words[_STEPS] % ROW_NUMBERS, number, begun, first, last, total,
            data, forward, backward, sync, optimizer, saving, scoring, other,
            loss, norm, tokens, samples, present, flags, 0, shortest, longest, squares,
        )
        # fmt: on
        page.count_work(number, tokens, samples)  # when all was found to fit
        steps = page.checksum_row()
        self._settle(now, parts, total)
        page.commit(now)
        return steps, total

    def watch_run_queue(self, descriptors: tuple[int, ...]) -> None:
        """Records what threads wait for a core; files of the kernel, one a thread."""
        self._run_queue.watch(descriptors)

    def watch_stops(self) -> None:
        """Does nothing: to a thread in Python a stop looks like work that holds the interpreter."""

    def _settle(self, now: int, parts: StepSeconds, total: float) -> None:
        """Takes time into the totals: the step's, or that of steps which a device has passed."""
        if self.device_rows is None:
            self._count_phases(parts)
            self._page.settle_step(total)
        else:
            self.device_rows.settle(now)


def _integer_of(value: Any, name: str, least: int, most: int) -> int:
    number = operator.index(value)
    if not least <= number <= most:
        raise ValueError(f"{name} {value!r} is outside of what a row can hold")
    return number


def _fitting(value: float) -> float:
    """The value as a row can hold it; a diverging one becomes infinite."""
    return math.copysign(math.inf, value) if abs(value) > _LARGEST else value


def number_of(value: Any) -> float | None:
    """A number without waiting for a device; None when that is not possible."""
    # item() of a tensor on a GPU would wait for all work of its stream.
    if value is None or getattr(value, "is_cuda", False):
        return None
    return float(value.item() if hasattr(value, "item") else value)
