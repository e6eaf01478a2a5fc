"""What the lint reads from the text of PromQL; promtool parses it in the tests."""

import re
from collections.abc import Iterator

_PAIRS = {")": "(", "]": "[", "}": "{"}
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_RATE = re.compile(r"\b(rate|irate|increase)\(")
_WINDOW = re.compile(r"[^\[\]]*\[([^\]:]+)\]")
_COUNTER = re.compile(r"(?<![\w:])([a-z][a-z0-9_]*_total)(?![\w:])")
_OVER_ITS_LIFE = re.compile(r"\b(?:last|max)_over_time\(\s*$")
SERIES = re.compile(r"\b(lockstep_[a-z0-9_]+|[a-z][a-z0-9_]*:[a-z0-9_]+:[a-z0-9_]+)\b")
"""Names of series of the catalogue."""


def is_balanced(expression: str) -> bool:
    """Whether brackets and quotes open and close in order."""
    open_brackets: list[str] = []
    bare = _STRING.sub('""', expression)
    for character in bare:
        if character in _PAIRS.values():
            open_brackets.append(character)
        elif character in _PAIRS and (
            not open_brackets or open_brackets.pop() != _PAIRS[character]
        ):
            return False
    return not open_brackets and bare.count('"') % 2 == 0


def rate_windows(expression: str) -> Iterator[tuple[str, str]]:
    """Each function that counts growth, with its window."""
    for found in _RATE.finditer(expression):
        window = _WINDOW.match(expression, found.end())
        if window is not None:
            yield found[1], window[1]


def counters_without_rate(expression: str) -> Iterator[str]:
    """Counters that are read as they are.

    The count itself is meant where a query says so: its last or highest value over a range.
    """
    for found in _COUNTER.finditer(_STRING.sub(_blank_metric_names, expression)):
        before = expression[: found.start()]
        if not _RATE.search(before[-_LONGEST:]) and not _OVER_ITS_LIFE.search(before):
            yield found[1]


_LONGEST = len("increase(")


def selectors(expression: str) -> Iterator[tuple[str, str]]:
    """Each series of the catalogue that is read, with its matchers."""
    for found in SERIES.finditer(_STRING.sub(_blank_metric_names, expression)):
        rest = expression[found.end() :]
        inside = re.match(r"\{([^}]*)\}", rest)
        yield found[1], inside[1] if inside else ""


def _blank_metric_names(found: re.Match[str]) -> str:
    return '"' + " " * (len(found[0]) - 2) + '"'
