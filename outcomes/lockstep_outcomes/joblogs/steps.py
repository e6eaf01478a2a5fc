"""Durations of steps: as the log states them, else between the times of two of its lines."""

import re
from array import array
from dataclasses import dataclass, field
from typing import Literal

from lockstep_outcomes.joblogs.prefix import Stamp

Meaning = Literal["step", "block", "rate"]


@dataclass(frozen=True, slots=True)
class StepWords:
    """The words of some frameworks.

    Attributes:
        meaning: a step's seconds, the seconds since the line before, or steps per second.
    """

    source: str
    meaning: Meaning
    unit_seconds: float
    pattern: re.Pattern[str]


def _words(source: str, meaning: Meaning, unit_seconds: float, pattern: str) -> StepWords:
    return StepWords(source, meaning, unit_seconds, re.compile(pattern))


_MOST_STEP_SECONDS = 1e9  # no step lasts longer
_NUMBER = r"(?P<value>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"
_IS = r"['\"]?\s*(?:[:=]|is)?\s*"
_STEP = r"(?i)\b(?:train_)?(?:step|iter(?:ation)?)[_ ]?time"
_PER_STEP = r"(?:[_ ]?per[_ ]?(?:step|iter\w*))?"
_ANY_TIME = rf"(?i)\b(?:(?:step|iter(?:ation)?|batch)[_ ]?)?time{_PER_STEP}"
_SECONDS = r"(?:[_ ]?(?:in[_ ])?s(?:ec\w*)?| ?\(s(?:ec\w*)?\))?"
_PER_ITERATION = "elapsed time per iteration"
STEP_WORDS: tuple[StepWords, ...] = (
    # Primus prints the last value and the mean, divided by a slash; the first of them counts.
    _words("Megatron, Primus, dlrover", "step", 1e-3, rf"{_PER_ITERATION} \(ms\){_IS}{_NUMBER}"),
    _words("Megatron-DeepSpeed", "step", 1.0, rf"{_PER_ITERATION} \(s(?:ec)?\){_IS}{_NUMBER}"),
    _words("NeMo", "step", 1.0, rf"train_step_timing(?:_in_s| in s)?{_IS}{_NUMBER}"),
    _words("MaxText", "step", 1.0, rf"completed step: ?\d+, seconds: {_NUMBER}"),
    _words("PAX", "step", 1.0, rf"train_step\(\) took {_NUMBER} seconds"),
    _words("TensorFlow hooks, PAX", "rate", 1.0,
           rf"(?:global_step|train[_ ]steps?|steps?)(?:/|_per_)sec(?:ond)?{_IS}{_NUMBER}"),
    _words("TensorFlow hooks", "block", 1.0, rf"\bstep = \d+ \({_NUMBER} sec\)"),
    _words("Keras", "step", 1e-3, rf"- \d+s {_NUMBER}ms/step"),
    _words("Keras", "step", 1.0, rf"- \d+s {_NUMBER}s/step"),
    _words("Keras", "step", 1e-6, rf"- \d+s {_NUMBER}us/step"),
    _words("many", "step", 1e-3, rf"{_ANY_TIME}(?:_ms| ?\(ms\)){_IS}{_NUMBER}"),
    _words("many", "step", 1e-3, rf"{_ANY_TIME}{_IS}{_NUMBER} ?ms\b"),
    _words("DeepSpeed, many", "step", 1.0, rf"{_STEP}{_SECONDS}{_IS}{_NUMBER}"),
    _words("many", "step", 1.0,
           rf"(?i)\bsec(?:ond)?s?[_/ ]?(?:per[_ ])?(?:step|iter\w*){_IS}{_NUMBER}"),
)  # fmt: skip
"""Words of step times. Hugging Face and others print none; there the lines' clock counts."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """What a line says a step took; for a block, all steps since the line before."""

    seconds: float
    is_block: bool


def find_step_time(text: str) -> StepTime | None:
    """The step time in a line of progress; None where it has none."""
    for words in STEP_WORDS:
        if match := words.pattern.search(text):
            value = float(match["value"]) * words.unit_seconds
            if not value < _MOST_STEP_SECONDS:
                return None
            if words.meaning == "rate":
                return StepTime(1 / value, is_block=False) if value > 0 else None
            return StepTime(value, is_block=words.meaning == "block")
    return None


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
        """Adds a line about a step and what it took, if it is the first of the step."""
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
