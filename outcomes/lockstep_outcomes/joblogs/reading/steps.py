"""Durations of steps: as the log states them, else between the times of two of its lines."""

from array import array
from dataclasses import dataclass, field

from lockstep_outcomes.joblogs.reading.prefix import Stamp
from lockstep_outcomes.joblogs.reading.step_words import StepTime

_MOST_STEPS = 2_000_000  # bound on memory, for hostile logs
# Times in whole seconds err by up to a second: over this much of them, by 5 % at most.
_COARSE_SECONDS = 20.0
_FINE_SECONDS = 5.0
_ALIKE = 0.1  # a value and the clock agree within this ratio
_MOST_SAMPLED = 10_000
_NO_NUMBER = -1


@dataclass(slots=True)
class StepSeries:
    """Steps of one log, in its order.

    Attributes:
        seconds: durations as the log states them; ``numbers`` of the steps, ``blocks`` how many
            steps each is the mean of, ``gaps`` the time since the line before, 0 where unknown.
        clocked_seconds: durations between the times of two lines.
        first_number: number of the first step; ``last_number`` is the highest one.
    """

    seconds: "array[float]" = field(default_factory=lambda: array("d"))
    numbers: "array[int]" = field(default_factory=lambda: array("q"))
    blocks: "array[int]" = field(default_factory=lambda: array("q"))
    gaps: "array[float]" = field(default_factory=lambda: array("d"))
    clocked_seconds: "array[float]" = field(default_factory=lambda: array("d"))
    clocked_numbers: "array[int]" = field(default_factory=lambda: array("q"))
    clocked_blocks: "array[int]" = field(default_factory=lambda: array("q"))
    first_number: int | None = None
    last_number: int | None = None
    _previous: tuple[int, float | None] | None = None
    _clock_from: tuple[int, float] | None = None
    _has_fractions: bool = False
    _num_losses: int = 0
    _loss_samples: object = None

    def add(self, number: int, took: StepTime | None, clock_seconds: float | None) -> None:
        """Adds a line about a step; lines of one step beyond the first are left out.

        Args:
            number: of the step, as the job counts.
            took: what the line says it took.
            clock_seconds: time of this very line by any clock; None where it has none.
        """
        previous = self._previous
        self.first_number = number if self.first_number is None else self.first_number
        if previous is not None and number == previous[0]:
            if took is not None and not (self.numbers and self.numbers[-1] == number):
                self._add_stated(number, took, 1, None)
            return
        num_steps = number - previous[0] if previous is not None and number > previous[0] else 1
        gap = None
        if clock_seconds is not None and previous is not None and previous[1] is not None:
            gap = clock_seconds - previous[1] if number > previous[0] else None
        if took is not None:
            self._add_stated(number, took, num_steps, gap)
        self._add_clocked(number, clock_seconds)
        self._previous = (number, clock_seconds)
        self.last_number = max(number, self.last_number or 0)

    def add_loss(self, samples: object, stamp: Stamp | None) -> None:
        """Adds a line with the loss of a step that has a time and no number; ``samples`` differ."""
        if samples is not None and samples == self._loss_samples:
            return
        self._loss_samples, self._num_losses = samples, self._num_losses + 1
        self._add_clocked(self._num_losses, None if stamp is None else stamp.seconds)

    def add_stated(self, number: int | None, seconds: float, *, is_block: bool) -> None:
        """Adds a duration that MLPerf's log states, without a clock."""
        if len(self.seconds) < _MOST_STEPS:
            self.seconds.append(seconds)
            self.numbers.append(_NO_NUMBER if number is None else number)
            self.blocks.append(2 if is_block else 1)
            self.gaps.append(0.0)

    def _add_stated(self, number: int, took: StepTime, num_steps: int, gap: float | None) -> None:
        if len(self.seconds) < _MOST_STEPS:
            self.seconds.append(took.seconds / num_steps if took.is_block else took.seconds)
            self.numbers.append(number)
            self.blocks.append(num_steps)
            self.gaps.append(gap or 0.0)

    def _add_clocked(self, number: int, seconds: float | None) -> None:
        if seconds is None:
            return
        self._has_fractions |= seconds % 1 != 0
        begin = self._clock_from
        if begin is None or number <= begin[0] or seconds < begin[1]:
            self._clock_from = (number, seconds)
            return
        spent, num_steps = seconds - begin[1], number - begin[0]
        # A clock of whole seconds is read again only after enough of them.
        is_fine = self._has_fractions or spent / num_steps >= _FINE_SECONDS
        if not is_fine and spent < _COARSE_SECONDS:
            return
        if len(self.clocked_seconds) < _MOST_STEPS:
            self.clocked_seconds.append(spent / num_steps)
            self.clocked_numbers.append(number)
            self.clocked_blocks.append(num_steps)
        self._clock_from = (number, seconds)

    @property
    def durations(self) -> "tuple[array[float], array[int], array[int]]":
        """Seconds of a step, its number, and of how many steps each value is the mean."""
        # Some lines of a few steps state a time: the lines' clock knows more of them.
        if 2 * len(self.seconds) < len(self.clocked_seconds) or not self.seconds:
            numbers = self.clocked_numbers
            if self._num_losses:
                numbers = array("q", [_NO_NUMBER] * len(numbers))
            return self.clocked_seconds, numbers, self.clocked_blocks
        if not self._are_sums():
            return self.seconds, self.numbers, self.blocks
        means = array("d", (s / n for s, n in zip(self.seconds, self.blocks, strict=True)))
        return means, self.numbers, self.blocks

    def _are_sums(self) -> bool:
        """Whether values of blocks agree with the clock as sums over their steps, and not as means.

        The clock between two lines is the sum; most frameworks print the mean over the lines'
        distance, some the time since the line before.
        """
        sums = means = 0
        rows = zip(self.seconds, self.blocks, self.gaps, strict=True)
        for index, (seconds, num_steps, gap) in enumerate(rows):
            if index >= _MOST_SAMPLED:
                break
            if num_steps > 1 and gap > 0:
                sums += abs(seconds / gap - 1) <= _ALIKE
                means += abs(seconds * num_steps / gap - 1) <= _ALIKE
        return sums > means
