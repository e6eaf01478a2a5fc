"""Ranks that end elsewhere than others: a step that only some begin, a call that only some make.

Uneven data, an early return and a collective on some ranks only leave no error of their own: what
fails is the wait of the others.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from lockstep_outcomes.progress.missing import FINISHED, STEP_PHASES, rank_words

_PLACE = re.compile(r"\((?:[^()\s]*/)*([^()\s/]+:\d+), in ([^()\s]+)\)$")
_MAX_PLACES = 3  # calls of one program at its end


class LastState(Protocol):
    """What is known of a rank at its end: its last phase, and the last step that it completed."""

    @property
    def rank(self) -> int:
        """Global rank."""

    @property
    def phase(self) -> str | None:
        """Phase of its last heartbeat; ``done`` when its loop ended."""

    @property
    def last_step(self) -> int | None:
        """None before the first."""


@dataclass(frozen=True, slots=True)
class UnevenEnd:
    """Ranks whose loop had ended when others were in the step after.

    Attributes:
        finished: ranks whose loop had ended, and the last step of any of them.
        left: ranks that went on, and the last step that all of them completed.
    """

    finished: tuple[int, ...]
    finished_step: int
    left: tuple[int, ...]
    left_step: int
    is_in_step: bool

    @property
    def ranks(self) -> tuple[int, ...]:
        """The fewer of the two; empty where they are as many."""
        if len(self.finished) == len(self.left):
            return ()
        return min(self.finished, self.left, key=len)

    @property
    def words(self) -> str:
        """Both with their steps, without a full stop."""
        were = "was" if len(self.left) == 1 else "were"
        further = f"{were} in step {self.left_step + 1}"
        if not self.is_in_step:
            further = f"went on after step {self.left_step}"
        loops = "its loop" if len(self.finished) == 1 else "their loops"
        return (
            f"{rank_words(self.left)} {further} when {rank_words(self.finished)} had ended {loops} "
            f"after step {self.finished_step}"
        )


def find_uneven_end(states: Iterable[LastState]) -> UnevenEnd | None:
    """The ranks that finished and those that went on; None where they do not differ so."""
    seen = [state for state in states if state.phase is not None]
    finished = [state for state in seen if state.phase == FINISHED]
    left = [state for state in seen if state.phase != FINISHED]
    if not all(state.phase in {*STEP_PHASES, "failed"} for state in left):
        return None
    ends = [state.last_step for state in finished if state.last_step is not None]
    begun = [state.last_step for state in left if state.last_step is not None]
    # Who has done fewer steps than the finished ones is behind, and in no step of its own.
    is_uneven = len(ends) == len(finished) > 0 and len(begun) == len(left) > 0
    if not is_uneven or max(ends) > min(begun):
        return None
    return UnevenEnd(
        tuple(sorted(state.rank for state in finished)),
        max(ends),
        tuple(sorted(state.rank for state in left)),
        min(begun),
        all(state.phase in STEP_PHASES for state in left),
    )


def unlike_calls(calls: Sequence[tuple[int, str, int | None]]) -> str:
    """Who waited elsewhere than others, in another call or step, without a full stop, or nothing.

    Args:
        calls: of ranks that failed because others were not there: rank, exception with its place,
            and last step.
    """
    are_in_one_step = len({step for *_, step in calls}) == 1
    ranks_at: dict[str, list[int]] = {}
    for rank, exception, step in calls:
        if (match := _PLACE.search(exception)) is None:
            return ""
        after = "" if are_in_one_step else f" after step {step}"
        ranks_at.setdefault(f"{match[2]} ({match[1]}){after}", []).append(rank)
    # Where each is elsewhere, nothing is usual.
    if not 1 < len(ranks_at) <= min(_MAX_PLACES, max(2, len(calls) - 1)):
        return ""
    few_first = sorted(ranks_at.items(), key=lambda item: len(item[1]))
    first, *others = [f"{rank_words(ranks)} in {call}" for call, ranks in few_first]
    first = first.replace(" in ", " waited in ", 1)
    return f"{', '.join([first, *others[:-1]])} and {others[-1]}"
