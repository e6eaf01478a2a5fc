"""One fault: its kind, its rank, its steps, and the line that announces it."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One fault to inject.

    Attributes:
        kind: name of one of ``kinds.KINDS``.
        rank: the rank that has the fault; None for every rank.
        step: first step with the fault, from 1; 0 for a fault at startup.
        until: first step without the fault; None for a fault that lasts to the end.
        attempt: start of the job that has the fault, so that a restart does not meet it again;
            None for every start.
        values: values of the kind by name; durations in seconds.
    """

    kind: str
    rank: int | None = None
    step: int = 1
    until: int | None = None
    attempt: int | None = None
    values: Mapping[str, float] = field(default_factory=dict)

    def is_due(self, step: int) -> bool:
        """Whether a step has the fault."""
        return self.step <= step and (self.until is None or step < self.until)

    def concerns(self, rank: int, attempt: int) -> bool:
        """Whether a rank has the fault in one start of the job."""
        return self.rank in {None, rank} and self.attempt in {None, attempt}

    def announce(self, *, rank: int, step: int) -> None:
        """Writes one line to stderr, before the fault takes effect."""
        sys.stderr.write(f"fault: {self.kind} rank={rank} step={step}\n")
        # A kill or a stop comes right after this line, and would lose what is buffered.
        sys.stderr.flush()
