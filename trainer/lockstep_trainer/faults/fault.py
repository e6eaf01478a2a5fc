"""One fault: what goes wrong, on which rank, in which steps, and how it is written as text."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """What goes wrong where and when.

    Attributes:
        kind: name of one of ``kinds.KINDS``.
        rank: the rank that it happens on; None for every rank.
        step: first step of it, from 1; 0 for before the first.
        until: first step without it; None for never again.
        attempt: start of the job that it happens in, so that a restart does not meet it again;
            None for every start.
        values: what the kind asks for besides, by name.
    """

    kind: str
    rank: int | None = None
    step: int = 1
    until: int | None = None
    attempt: int | None = None
    values: Mapping[str, float] = field(default_factory=dict)

    def is_due(self, step: int) -> bool:
        """Whether it happens in a step."""
        return self.step <= step and (self.until is None or step < self.until)

    def concerns(self, rank: int, attempt: int) -> bool:
        """Whether it happens on a rank of a start of the job."""
        return self.rank in {None, rank} and self.attempt in {None, attempt}

    def say(self, *, rank: int, step: int) -> None:
        """Tells of it in one line on stderr, before it has an effect."""
        sys.stderr.write(f"fault: {self.kind} rank={rank} step={step}\n")
        sys.stderr.flush()
