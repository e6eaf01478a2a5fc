"""Which jobs are taken, by their labels."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Filters:
    """Which jobs are taken.

    Attributes:
        labels: selector, as pairs of a label and its value; of None it only has to be there.
    """

    labels: tuple[tuple[str, str | None], ...] = ()

    def admits(self, labels: dict[str, str]) -> bool:
        """Whether an object's labels match."""
        return all(
            labels.get(name) == value if value is not None else name in labels
            for name, value in self.labels
        )


def read_selector(text: str) -> Filters:
    """A selector of labels: NAME=VALUE or NAME, several with commas.

    Raises:
        ValueError: it is none.
    """
    pairs: list[tuple[str, str | None]] = []
    for word in filter(None, text.split(",")):
        name, sign, value = word.partition("=")
        if not name or not re.fullmatch(r"[\w./-]+", name) or value.startswith("="):
            raise ValueError(
                f"--selector {text!r:.100} must be NAME=VALUE or NAME, with commas between"
            )
        pairs.append((name, value if sign else None))
    return Filters(tuple(pairs))
