"""The words in which frameworks print how long a step took: one table, searched top to bottom."""

import re
from dataclasses import dataclass
from typing import Literal

Meaning = Literal["step", "block", "rate"]


@dataclass(frozen=True, slots=True)
class StepWords:
    """The words of some frameworks.

    Attributes:
        source: frameworks that print them.
        meaning: a step's seconds, the seconds since the line before, or steps per second.
        unit_seconds: length of the printed unit.
    """

    source: str
    meaning: Meaning
    unit_seconds: float
    pattern: re.Pattern[str]


def _words(source: str, meaning: Meaning, unit_seconds: float, pattern: str) -> StepWords:
    return StepWords(source, meaning, unit_seconds, re.compile(pattern))


_MOST_SECONDS = 1e9  # no step lasts longer
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
            if not value < _MOST_SECONDS:
                return None
            if words.meaning == "rate":
                return StepTime(1 / value, is_block=False) if value > 0 else None
            return StepTime(value, is_block=words.meaning == "block")
    return None
