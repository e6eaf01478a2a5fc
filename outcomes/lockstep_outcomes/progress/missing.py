"""Which ranks the others wait for when none moves: one rule over what is known of each rank.

Ranks of a synchronous job do the same work. Who keeps the others waiting is therefore never ahead
of anybody: not in steps, not in the
collectives of any group. A device runs behind its host, which goes on until its queue is full and
then stands wherever it is, so that phases
are compared last, and only between ranks that are equal in all that comes before.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from lockstep_catalogue.vocabulary import PAUSE_PHASES

Device = Literal["pending", "passed"]
Kind = Literal["host", "operations", "device", "launched", "unseen", "nobody"]
WAITING = "sync"
FINISHED = "done"
STEP_PHASES = frozenset({WAITING, "forward", "backward", "optimizer"})
"""Before data, and after the last step, a loop may be over and only its end not yet marked."""
STOPPED = frozenset("Tt")
GONE = "X"
KERNEL_WAIT = "D"
_PLACES = ("other", "data", "forward", "backward", "optimizer")
"""Own work after a completed step, in the order of most loops; before data is ``other``."""
_MAX_NAMED = 8
_MAJORITY = 0.5
_OFTEN = 4  # times as often as another: in each step, and not after some
_OTHER = "another_collective"
_ONE_SIDED = frozenset({"", "broadcast", "reduce", "gather", "scatter"})  # ends on some ranks first


class Launched(NamedTuple):
    """Collectives of one group that a host has launched.

    Attributes:
        number: how many; the last one's number, where they are counted from 1.
        operation: the last one; empty where unknown.
        oldest: number and operation of the first that has not completed; None where unknown, or
            where all have.
        times: that the call in which it stands, of the same sizes, was made before.
    """

    number: int
    operation: str = ""
    oldest: tuple[int, str] | None = None
    times: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RankState:
    """Where a rank stands.

    Attributes:
        phase: phase that its last heartbeat began; empty where unknown.
        step: last completed step; None before the first.
        rounds: meetings with the other ranks, where ranks do different numbers of steps by design;
            else None.
        idle_seconds: since its last heartbeat; 0 where unknown.
        process: state of its process by /proc (R running, S asleep, D in the kernel, T stopped, Z
            ended, X gone); None where not visible here.
        device: whether the device still has work that the host gave it; None where nobody asked.
        launched: collectives by group.
    """

    rank: int
    phase: str = ""
    step: int | None = None
    rounds: int | None = None
    idle_seconds: float = 0.0
    process: str | None = None
    device: Device | None = None
    launched: Mapping[str, Launched] = field(default_factory=dict)

    @property
    def progress(self) -> int:
        """What ranks that move together have in common: rounds where steps are uneven, or steps."""
        number = self.rounds if self.rounds is not None else self.step
        return -1 if number is None else number

    @property
    def waits(self) -> bool:
        """Whether it waits for what others or its device must do."""
        return self.process not in {*STOPPED, GONE} and (
            self.phase == WAITING or self.device == "pending"
        )


@dataclass(frozen=True, slots=True)
class Missing:
    """Whom the others wait for.

    Attributes:
        ranks: in order; empty where no rank keeps the others waiting.
        kind: `host`: these ranks have not come to what the others wait in. `operations`: they
            called another collective than their peers, or than steps have; where neither says
            which, all are named. `device`: they stand in what their peers have completed.
            `launched`: all hosts did what they had to, and a link or a device does not complete
            it. `unseen`: all that are seen wait, and not all are seen. `nobody`: all are at the
            same place.
        why: the evidence, as clauses after the name of the ranks.
        evidence: the first that sets them apart, a value of the label ``hang_evidence``; empty
            without ranks.
    """

    ranks: tuple[int, ...]
    kind: Kind
    why: str
    evidence: str = ""


def find_missing(states: Sequence[RankState], world_size: int | None = None) -> Missing:
    """Whom the ranks of a job that stands wait for.

    Each kind of evidence narrows the ranks that all before it left: steps, collectives launched in
    each group, work on the device, then between equals whether the process can run at all, phases,
    and calls into the kernel.

    Args:
        states: of the ranks that are seen, one a rank.
        world_size: ranks of the job; None where unknown.
    """
    if (odd := _odd_operations(states) or _stuck(states)) is not None:
        return odd
    left, clauses, first = list(states), list[str](), ""
    for name, evidence in _EVIDENCE.items():
        found, clause = evidence(left, states)
        # What all that are left share says why they stand, and sets none apart.
        if found and (len(found) < len(left) or evidence in _STATES_OF_PROCESSES):
            left, first = found, first or name
            clauses.append(clause(left, states))
        is_complete = world_size is None or world_size <= len(states)
        if is_complete and evidence in _PLACES_REACHED:
            continue  # a host that has launched less is behind, whatever its phase
        if all(state.waits for state in left):
            if (answer := _all_wait(left, states, world_size)) is not None:
                return answer
            break
    if len(left) < len(states) or len(states) == 1:
        return _named(left, "host", ", ".join(filter(None, clauses)), first or "alone")
    return Missing((), "nobody", f"no rank stands apart{places(states)}")


def _named(found: Iterable[RankState], kind: Kind, why: str, evidence: str) -> Missing:
    return Missing(tuple(sorted(state.rank for state in found)), kind, why, evidence)


def places(states: Sequence[RankState]) -> str:
    """The phases of ranks, as the end of a sentence."""
    phases = sorted({state.phase for state in states if state.phase})
    return f", all in {' or '.join(phases)}" if phases else ""


def rank_words(ranks: Sequence[int]) -> str:
    """Ranks in words, at most eight by number: "rank 1", "ranks 0 and 2", "ranks 0 to 7"."""
    numbers = sorted(set(ranks))
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if len(numbers) > _MAX_NAMED and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"ranks {numbers[0]} to {numbers[-1]}"
    if len(numbers) > _MAX_NAMED:
        listed = ", ".join(map(str, numbers[:_MAX_NAMED]))
        return f"ranks {listed} and {len(numbers) - _MAX_NAMED:,} others"
    return "ranks " + ", ".join(map(str, numbers[:-1])) + f" and {numbers[-1]}"


_States = Sequence[RankState]
_Clause = Callable[[_States, _States], str]
_Found = tuple[list[RankState], _Clause]


def _behind_in_steps(left: _States, _: _States) -> _Found:
    least = min((state.progress for state in left), default=-1)
    what = "round" if any(state.rounds is not None for state in left) else "step"

    def clause(_: _States, states: _States) -> str:
        ahead = sorted({state.progress for state in states} - {least})
        numbers = " to ".join(map(str, dict.fromkeys((ahead[0], ahead[-1]))))
        return f"while others have completed {what} {numbers}"

    return [state for state in left if state.progress == least], clause


def _finished(left: _States, _: _States) -> _Found:
    """Who has ended its loop is waited for by who is in another step, and by nobody else."""
    finished = [state for state in left if state.phase == FINISHED]
    others = [state for state in left if state.phase != FINISHED]
    are_in_a_step = all(state.phase in STEP_PHASES for state in others)
    return finished if are_in_a_step else others, lambda *_: ""


def _behind_in_collectives(left: _States, states: _States) -> _Found:
    """Those who are ahead of nobody in any group: what one is ahead in, it waits in."""
    least = {group: min(numbers) for group, numbers in _numbers(states).items()}
    found = [
        s
        for s in left
        if all(launched.number <= least[group] for group, launched in s.launched.items())
    ]

    def clause(found: _States, states: _States) -> str:
        group, own, most = _widest_gap(found, states)
        calls = {
            launched.number: f" ({launched.operation})"
            for state in states
            if (launched := state.launched.get(group)) is not None and launched.operation
        }
        return (
            f"with {own:,} collectives of group {group} launched{calls.get(own, '')} to the others'"
            f" {most:,}{calls.get(most, '')}"
        )

    return found, clause


def _widest_gap(found: _States, states: _States) -> tuple[str, int, int]:
    """The group in which these ranks are furthest behind; what they and what others launched."""
    most = {group: max(numbers) for group, numbers in _numbers(states).items()}
    gaps = [
        (most[group] - launched.number, group, launched.number)
        for state in found
        for group, launched in state.launched.items()
    ]
    gap, group, own = max(gaps)
    return group, own, own + gap


def _late_hosts(left: _States, _: _States) -> _Found:
    """A host is late whose device has nothing left; one whose device has waits behind it."""
    passed = [state for state in left if state.device == "passed"]
    unknown = [state for state in left if state.device is None]
    clause = "with nothing left on its device" if passed else "while other devices have work"
    return passed or unknown, lambda *_: clause


def _not_running(left: _States, _: _States) -> _Found:
    gone = [state for state in left if state.process == GONE]
    stopped = [state for state in left if state.process in STOPPED]
    return gone or stopped, lambda *_: "its process has ended" if gone else "stopped by a signal"


def _outside_of_waits(left: _States, _: _States) -> _Found:
    """Ranks in synchronisation wait for all others; those in a pause for who has not begun it."""
    outside = [state for state in left if state.phase != WAITING]
    at_work = [state for state in outside if state.phase not in PAUSE_PHASES]
    return at_work or outside, lambda *_: ""


def _earlier_in_the_step(left: _States, _: _States) -> _Found:
    """Hosts that run ahead stand in any phase; whom they wait for has come less far."""
    orders = [
        _PLACES.index(state.phase) if state.phase in _PLACES else len(_PLACES) for state in left
    ]
    first = min(orders, default=0)
    found = [state for state, order in zip(left, orders, strict=True) if order == first]
    return found, lambda *_: "the others have come further in the step"


def _blocked_in_kernel(left: _States, _: _States) -> _Found:
    return [
        state for state in left if state.process == KERNEL_WAIT
    ], lambda *_: "blocked in the kernel"


def _odd_operations(states: _States) -> Missing | None:
    """Ranks that called another operation than their peers as the same number of a group."""
    for describe in (_first_open, _last):
        by_number: dict[tuple[str, int], dict[int, str]] = {}
        times: dict[tuple[str, int], dict[str, int]] = {}
        for state in states:
            for group, launched in state.launched.items() if state.waits else ():
                number, operation = describe(launched)
                if operation:
                    by_number.setdefault((group, number), {})[state.rank] = operation
                    times.setdefault((group, number), {})[operation] = launched.times
        for (group, number), called in sorted(by_number.items()):
            if len(set(called.values())) > 1:
                what = f"collective {number:,} of group {group}"
                return _minority(called, times[group, number], what)
    return None


def _first_open(launched: Launched) -> tuple[int, str]:
    return launched.oldest or (0, "")


def _last(launched: Launched) -> tuple[int, str]:
    return launched.number, launched.operation


def _minority(called: Mapping[int, str], times: Mapping[str, int], what: str) -> Missing:
    """Who called another operation than most, or, where there are no most, than each step has."""
    (usual, most), *_ = Counter(called.values()).most_common(1)
    as_before = ""
    (often, seldom), is_even = sorted(times.values())[:-3:-1], most <= _MAJORITY * len(called)
    if is_even and often > _OFTEN * max(1, seldom):
        usual = max(times, key=times.__getitem__)
        as_before = f", as {often:,} times before"
    elif is_even:
        why = " or ".join(sorted(set(called.values())))
        return Missing(
            tuple(sorted(called)), "operations", f"having called {why} as {what}", _OTHER
        )
    odd = {rank: operation for rank, operation in called.items() if operation != usual}
    called_instead = " or ".join(sorted(set(odd.values())))
    why = f"having called {called_instead} as {what}, the others {usual}{as_before}"
    return Missing(tuple(sorted(odd)), "operations", why, _OTHER)


def _stuck(states: _States) -> Missing | None:
    """Ranks that stand in a collective which others of its group have completed."""
    completed: dict[str, int] = {}
    for state in states:
        for group, launched in state.launched.items():
            if launched.operation:
                number = launched.oldest[0] - 1 if launched.oldest else launched.number
                completed[group] = max(number, completed.get(group, 0))
    stuck = [
        (state, group, number, operation)
        for state in states
        for group, launched in state.launched.items()
        for number, operation in [_first_open(launched)]
        if operation not in _ONE_SIDED and number <= completed.get(group, 0)
    ]
    if not stuck or len({state.rank for state, *_ in stuck}) == len(states):
        return None
    _, group, number, operation = stuck[0]
    why = f"in {operation} {number:,} of group {group}, which others have completed"
    found = {state.rank: state for state, *_ in stuck}.values()
    return _named(found, "device", why, "stuck_in_collective")


def _all_wait(left: _States, states: _States, world_size: int | None) -> Missing | None:
    """The answer where all that are left wait; None where they are behind in a blocking call."""
    if world_size is not None and world_size > len(states):
        why = f"all {len(states)} ranks that are seen here wait, of {world_size}"
        return Missing((), "unseen", why)
    if any(state.device == "pending" for state in left):
        why = "all have launched what the others wait for, and a link or a device holds it up"
        return Missing((), "launched", why)
    if len(left) < len(states):
        return None
    return Missing((), "launched", f"no rank stands apart{places(states)}")


def _numbers(states: _States) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = {}
    for state in states:
        for group, launched in state.launched.items():
            numbers.setdefault(group, []).append(launched.number)
    return numbers


_PLACES_REACHED = (_behind_in_steps, _finished)
_STATES_OF_PROCESSES = (_not_running, _blocked_in_kernel)
_EVIDENCE: dict[str, Callable[[_States, _States], _Found]] = {
    "behind_in_steps": _behind_in_steps,
    "loop_has_ended": _finished,
    "behind_in_collectives": _behind_in_collectives,
    "nothing_left_on_device": _late_hosts,
    "process_not_running": _not_running,
    "outside_of_waits": _outside_of_waits,
    "earlier_in_the_step": _earlier_in_the_step,
    "blocked_in_kernel": _blocked_in_kernel,
}
