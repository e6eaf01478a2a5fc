"""Expands the templates of an alert's labels: the part of Go's templates that such labels use."""

import re
from collections.abc import Callable, Mapping
from typing import Any

Sample = tuple[Mapping[str, str], float]
Query = Callable[[str], list[Sample]]
TOKEN = re.compile(r"\{\{-?\s*(.*?)\s*-?\}\}", re.DOTALL)
WORD = re.compile(r'"(?:[^"\\]|\\.)*"|`[^`]*`|\(|\)|\||[^\s()|]+')


def expand(text: str, labels: Mapping[str, str], value: float, query: Query) -> str:
    """The text of a label of an alert.

    Raises:
        ValueError: the template uses what is not known here.
    """
    if "{{" not in text:
        return text
    parts = TOKEN.split(text)
    return _Expansion(parts, labels, value, query).block(0, None, is_shown=True)[0]


class _Expansion:
    def __init__(
        self, parts: list[str], labels: Mapping[str, str], value: float, query: Query
    ) -> None:
        self._parts, self._labels, self._value, self._query = parts, labels, value, query

    def block(self, index: int, dot: Any, *, is_shown: bool) -> tuple[str, int, str]:
        """Text from a part on, the part that ends it, and whether by else or end."""
        found = ""
        while index < len(self._parts):
            if index % 2 == 0:
                found += self._parts[index] if is_shown else ""
                index += 1
                continue
            action, _, rest = self._parts[index].partition(" ")
            if action in {"end", "else"}:
                return found, index, action
            if action in {"with", "if"}:
                value = self._pipeline(rest, dot) if is_shown else None
                inner = value if action == "with" else dot
                text, index, ending = self.block(
                    index + 1, inner, is_shown=is_shown and bool(value)
                )
                found += text
                if ending == "else":
                    is_printed = is_shown and not value
                    text, index, _ = self.block(index + 1, dot, is_shown=is_printed)
                    found += text
            elif is_shown:
                found += str(self._pipeline(self._parts[index], dot))
            index += 1
        return found, index, ""

    def _pipeline(self, text: str, dot: Any) -> Any:
        words = WORD.findall(text)
        value, rest = self._command(words, dot, [])
        while rest:
            value, rest = self._command(rest[1:], dot, [value])
        return value

    def _command(self, words: list[str], dot: Any, piped: list[Any]) -> tuple[Any, list[str]]:
        """The value of a command, and the words after it."""
        values: list[Any] = []
        index = 0
        while index < len(words) and words[index] not in {"|", ")"}:
            if words[index] == "(":
                value, rest = self._command(words[index + 1 :], dot, [])
                while rest and rest[0] == "|":
                    value, rest = self._command(rest[1:], dot, [value])
                values.append(value)
                index = len(words) - len(rest) + 1
                continue
            values.append(self._word(words[index], dot))
            index += 1
        head, *arguments = values
        result = head(*arguments, *piped) if callable(head) else head
        return result, words[index:]

    def _word(self, word: str, dot: Any) -> Any:
        functions: dict[str, Any] = {
            "query": self._query,
            "first": lambda samples: samples[0],
            "label": lambda name, sample: sample[0].get(name, ""),
            "value": lambda sample: sample[1],
            "printf": lambda text, *values: text.replace("%q", '"%s"') % values,
            "or": lambda *values: next((each for each in values if each), values[-1]),
            "and": lambda *values: next((each for each in values if not each), values[-1]),
            "not": lambda operand: not operand,
            "eq": lambda left, right: left == right,
            "ne": lambda left, right: left != right,
            "gt": lambda left, right: left > right,
            "lt": lambda left, right: left < right,
        }
        if word[0] in '"`':
            return word[1:-1].replace('\\"', '"')
        if word.startswith("$labels."):
            return self._labels.get(word[8:], "")
        if word == "$value":
            return self._value
        if word == ".":
            return dot
        if re.fullmatch(r"-?[\d.]+", word):
            return float(word)
        if word in functions:
            return functions[word]
        raise ValueError(f"template word {word!r} is not known here")
