"""Ranks that hold a job up by their launched collectives, over some polls of NCCL's status socket.

Counts of ranks differ for moments in every healthy job, and a count that stays may be that of a
rank at other work. So nobody is named whose counts and whose fellows' counts have not stayed the
same from poll to poll, and where all have launched the same nothing is known: a link, sends and
receives, or captured graphs may stand or move.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lockstep_outcomes.progress.launch_finding import Kind, LateRank, LaunchFinding, Why, name_ranks
from lockstep_outcomes.progress.missing import WAITING, Launched, RankState, find_missing
from lockstep_records.nccl.ras_answer import (
    Absence,
    Answer,
    Communicator,
    Crowd,
    MissingRank,
    ProcessDevice,
    RankLaunches,
)

LEAST_POLLS = 2
_FEW = 4
_DEAD_POLLS, _DEAD_SECONDS = 2, 60.0
"""What NCCL itself has waited for a process that it calls dead."""
_ENDING = frozenset({"ending", "aborted"})


class _Entry(NamedTuple):
    """What is known of a rank in a communicator, unchanged since a time and a poll."""

    value: Mapping[str, int] | tuple[Crowd, ...] | Absence
    seconds: float
    poll: int


_UNNAMED = -1
"""In process of a rank, for those that a text counts without naming them."""
_Entries = dict[str, dict[int, _Entry]]


@dataclass(slots=True)
class LaunchHistory:
    """The answers of one job, the newest kept, and when a count was last seen to change."""

    num_polls: int = 0
    last: Answer | None = None
    moved_seconds: float | None = None
    _entries: _Entries = field(default_factory=dict)
    _now_seconds: float = 0.0

    def ingest(self, answer: Answer, seconds: float) -> None:
        """Takes in an answer that came at a time, which may be on any clock."""
        before, self._entries = self._entries, {}
        # Of a text a rank that is new, or gone, has become an outlier or ceased to be one.
        are_texts = self.last is not None and self.last.is_text and answer.is_text
        self.num_polls, self.last, self._now_seconds = self.num_polls + 1, answer, seconds
        for communicator in answer.communicators:
            old_entries = before.pop(communicator.name, {})
            entries = self._entries[communicator.name] = {}
            for rank, value in _values_of(communicator):
                old = old_entries.pop(rank, None)
                is_same = old is not None and _is_same(old.value, value)
                entries[rank] = old if old and is_same else _Entry(value, seconds, self.num_polls)
                was_counted = are_texts if old is None else not isinstance(old.value, str)
                if not is_same and was_counted and not isinstance(value, str):
                    self.moved_seconds = seconds
            if are_texts and old_entries:
                self.moved_seconds = seconds
        if are_texts and before:
            self.moved_seconds = seconds

    def finding(self, least_polls: int = LEAST_POLLS, limit_seconds: float = 0.0) -> LaunchFinding:
        """What is to be said of the newest answer, if so many polls show it for so long."""
        assert self.last is not None, "an answer comes first"
        live = [each for each in self.last.communicators if _is_live(each, self.last)]
        if not live:
            return _nothing_live(self.last)

        frozen, moved = self._settle(live, least_polls, limit_seconds)
        late = _find_late(self.last, frozen, moved)
        is_hang = bool(late) and _is_minority(late, frozen)
        if not is_hang and self.num_polls > 1 and self.moved_seconds == self._now_seconds:
            return LaunchFinding(kind="moving", why="ranks go on launching collectives")
        late = late or _find_late(self.last, live, frozenset())
        seconds, polls = self._unchanged(late, live)
        kind: Kind = "hang" if is_hang else "suspect" if late else "still"
        seen = f"the same in {polls} answers" if polls > 1 else "in one answer"
        why = seen if is_hang else self._why(late, live, polls)
        remarks = tuple(_remarks(self.last, live, late))
        return LaunchFinding(
            kind=kind, why=why, late=late, seconds=seconds, num_polls=polls, remarks=remarks
        )

    def _settle(
        self, live: Sequence[Communicator], least_polls: int, limit_seconds: float
    ) -> tuple[list[Communicator], set[ProcessDevice]]:
        """Communicators in which nothing has changed for long enough; processes that do launch."""
        frozen, moved = [], set()
        for communicator in live:
            entries = self._entries[communicator.name]
            dead = {each.rank for each in communicator.missing if each.absence == "dead"}
            young = {
                rank
                for rank, entry in entries.items()
                if self.num_polls - entry.poll + 1 + _DEAD_POLLS * (rank in dead) < least_polls
                or self._now_seconds - entry.seconds + _DEAD_SECONDS * (rank in dead)
                < limit_seconds
            }
            if not young:
                frozen.append(communicator)
            # Who launches anything in any communicator keeps nobody waiting yet.
            moved |= {rank.process for rank in communicator.ranks if rank.rank in young}
        return frozen, moved

    def _why(self, late: Sequence[LateRank], live: Sequence[Communicator], num_polls: int) -> str:
        """Why nothing can be known."""
        if not late:
            return _why_unknown(live, num_polls)
        if not _is_minority(late, live):
            return "more than half of the ranks are gone, as where a job ends"
        if self.num_polls > 1:
            return "not for long enough to be a hang"
        return "in one answer: it is a hang where the next ones show the same"

    def _unchanged(
        self, late: Sequence[LateRank], communicators: Sequence[Communicator]
    ) -> tuple[float, int]:
        """For how long, and in how many answers, nothing has changed where the late ranks are."""
        names = {each.communicator for each in late} or {each.name for each in communicators}
        entries = [entry for name in names for entry in self._entries[name].values()]
        newest = max(entries, key=lambda entry: entry.poll, default=None)
        if newest is None:
            return 0.0, self.num_polls
        return self._now_seconds - newest.seconds, self.num_polls - newest.poll + 1


def _values_of(communicator: Communicator) -> Iterator[tuple[int, Any]]:
    yield from ((each.rank, each.counts) for each in communicator.ranks)
    # From silent to dead nothing has changed but the time.
    yield from (
        (each.rank, "left" if each.absence == "left" else "silent") for each in communicator.missing
    )
    if communicator.crowds:
        yield _UNNAMED, communicator.crowds


def _is_same(old: Any, new: Any) -> bool:
    """Whether nothing has changed; a text says less of a rank than JSON does."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return all(old[function] == new[function] for function in old.keys() & new.keys())
    return bool(old == new)


def _is_live(communicator: Communicator, answer: Answer) -> bool:
    """Whether it is in use, and the answer says it of all of its ranks."""
    if not answer.is_text and len(communicator.members) < communicator.size:
        return False
    states = {rank.state for rank in communicator.ranks}
    if not states:
        return bool(communicator.missing or communicator.crowds)
    return not states <= _ENDING and states != {"starting"}


def _nothing_live(answer: Answer) -> LaunchFinding:
    states = {rank.state for each in answer.communicators for rank in each.ranks}
    if states and states <= _ENDING:
        return LaunchFinding(kind="ending", why="the communicators are being finalised or aborted")
    if states == {"starting"}:
        return LaunchFinding(kind="starting", why="the communicators are being initialised")
    why = "communicators do not exist yet, or not any more"
    if states:
        why = "the answer lacks ranks"
    elif answer.num_communicators:
        why = (
            "no rank differs, and a text counts only what differs: neither progress nor a stop,"
            " nor sends, receives and captured graphs are in it"
        )
    return LaunchFinding(kind="unseen", why=why)


def _remarks(
    answer: Answer, communicators: Sequence[Communicator], late: Sequence[LateRank]
) -> Iterator[str]:
    """Errors that ranks report, and who is behind where others do not answer."""
    members = _Members(answer)
    for communicator in communicators:
        for rank in communicator.ranks:
            if rank.error:
                reporting = members.late(communicator, rank, "behind")
                yield f"{name_ranks([reporting])} reports {rank.error}"
    if late and late[0].launched is None:
        groups = _differing(answer, communicators, members)
        yield from (each.words() for each in _find_behind(groups, members, frozenset()))


def _why_unknown(communicators: Sequence[Communicator], polls: int) -> str:
    if not any(n for each in communicators for rank in each.ranks for n in rank.counts.values()):
        return "not one collective is counted; sends, receives and captured graphs never are"
    seen = f"the same in {polls} answers" if polls > 1 else "in one answer"
    return (
        f"all have launched the same, {seen}: whether it completes, and whether sends, receives or"
        " captured graphs stand or move, is not counted"
    )


class _Group:
    """What ranks of a communicator have launched, by member; of a text one function alone."""

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator
        self.ranks: dict[int, RankLaunches | Crowd] = {}
        self.counts: dict[int, Mapping[str, int]] = {}
        self._highest: dict[str, list[int]] = {}

    def add(self, member: int, rank: RankLaunches | Crowd, counts: Mapping[str, int]) -> None:
        """Takes in a member."""
        self.ranks[member], self.counts[member] = rank, counts
        for function, launched in counts.items():
            two = sorted([*self._highest.get(function, ()), launched], reverse=True)[:2]
            self._highest[function] = two

    @property
    def differs(self) -> bool:
        """Whether any two members have launched other numbers."""
        return len({tuple(sorted(counts.items())) for counts in self.counts.values()}) > 1

    def furthest(self, member: int, *, ahead: bool) -> tuple[str, int, int]:
        """The function in which a member is furthest ahead or behind; its count, the highest."""
        own, gaps = self.counts[member], dict[str, int]()
        for function in sorted(own):
            two = self._highest[function]
            gaps[function] = own[function] - two[own[function] == two[0]] if two[1:] else 0
        if not gaps:
            return "", 0, 0
        function = (max if ahead else min)(gaps, key=gaps.__getitem__)
        return function, own[function], own[function] - gaps[function]


class _Members:
    """Numbers for processes and crowds, and the ranks of the job, by its largest communicator."""

    def __init__(self, answer: Answer) -> None:
        everywhere = {
            each.process
            for communicator in answer.communicators
            for each in communicator.members
            if each.process.pid >= 0
        }
        world = {each.process: each.rank for each in answer.world if each.process.pid >= 0}
        # Groups without a common one number their ranks each for itself.
        self._world = world if everywhere <= world.keys() else {}
        self._numbers: dict[object, int] = {}

    def number(self, communicator: Communicator, each: RankLaunches | Crowd) -> int:
        """The same for one device of a process in all communicators."""
        key: object = (communicator.name, each)
        if isinstance(each, RankLaunches):
            key = each.process if each.process.pid >= 0 else (communicator.name, each.rank)
        return self._numbers.setdefault(key, len(self._numbers))

    def late(
        self, communicator: Communicator, each: RankLaunches | MissingRank, why: Why, **fields: Any
    ) -> LateRank:
        """The rank, by its number in the job where that is known."""
        rank = self._world.get(each.process)
        return LateRank(
            rank=each.rank if rank is None else rank,
            is_of_job=rank is not None,
            process=each.process,
            communicator=communicator.name,
            why=why,
            **fields,
        )


def _find_late(
    answer: Answer, communicators: Sequence[Communicator], moved: Collection[ProcessDevice]
) -> tuple[LateRank, ...]:
    """Ranks that do not answer; else those that are behind, or alone ahead."""
    members = _Members(answer)
    silent: dict[tuple[object, ...], LateRank] = {}
    for communicator in sorted(communicators, key=lambda each: -each.size):
        for each in communicator.missing:
            late = members.late(communicator, each, each.absence)
            key = (late.rank,) if late.is_of_job else (late.communicator, late.rank)
            # Who answers and is not in a communicator has left it, as at the end of every job.
            if each.absence != "left":
                silent.setdefault(key, late)
    groups = _differing(answer, communicators, members)
    return tuple(silent.values()) or tuple(_find_behind(groups, members, moved))


def _differing(
    answer: Answer, communicators: Sequence[Communicator], members: "_Members"
) -> list["_Group"]:
    groups = (group for each in communicators for group in _groups(each, members, answer))
    return [group for group in groups if group.differs]


def _groups(communicator: Communicator, members: _Members, answer: Answer) -> Iterator[_Group]:
    """The communicator, or, of a text, its functions: there ranks are named in some of them."""
    of_all, by_function = _Group(communicator), dict[str, _Group]()
    for rank in communicator.ranks:
        number = members.number(communicator, rank)
        of_all.add(number, rank, rank.counts)
        for function, launched in rank.counts.items() if answer.is_text else ():
            group = by_function.setdefault(function, _Group(communicator))
            group.add(number, rank, {function: launched})
    for crowd in communicator.crowds:
        group = by_function.setdefault(crowd.function, _Group(communicator))
        group.add(members.number(communicator, crowd), crowd, {crowd.function: crowd.launched})
    yield from by_function.values() if answer.is_text else (of_all,)


def _find_behind(
    groups: Sequence[_Group], members: _Members, moved: Collection[ProcessDevice]
) -> Iterator[LateRank]:
    """Who is behind by the rule of all hangs; who is ahead of anybody waits there."""
    launched: dict[int, dict[str, Launched]] = {}
    waiting: set[int] = set()
    for index, group in enumerate(groups):
        totals = {member: sum(counts.values()) for member, counts in group.counts.items()}
        least, most = min(totals.values()), max(totals.values())
        for member, total in totals.items():
            operation = ""
            if total > least or least == most:
                waiting.add(member)
                operation = group.furthest(member, ahead=True)[0]
            launched.setdefault(member, {})[str(index)] = Launched(total, operation)
    missing = find_missing(
        [
            RankState(rank=member, phase=WAITING if member in waiting else "", launched=of_groups)
            for member, of_groups in launched.items()
        ]
    )
    is_other = missing.kind == "operations"
    late = set(missing.ranks)
    why: Why = "another" if is_other else "behind"
    # Where all but a few are behind, these have called what nobody else has.
    if not is_other and 2 * len(late) > len(launched) >= _FEW * len(waiting):
        late, why = waiting, "ahead"
    for member in sorted(late):
        own = [groups[int(index)] for index in launched[member]]
        yield from _describe(member, why, own, members, moved)


def _describe(
    member: int,
    why: Why,
    groups: Sequence[_Group],
    members: _Members,
    moved: Collection[ProcessDevice],
) -> Iterator[LateRank]:
    """The member in that of its groups where it is furthest behind or ahead; none if it moves."""
    gaps = [(group, *group.furthest(member, ahead=why == "ahead")) for group in groups]
    group, function, launched, most = max(gaps, key=lambda gap: abs(gap[3] - gap[2]))
    rank, name = group.ranks[member], group.communicator.name
    if isinstance(rank, Crowd):
        yield LateRank(
            rank=_UNNAMED, is_of_job=False, process=ProcessDevice(), communicator=name, why=why,
            function=function, launched=(launched, most), num_ranks=rank.num_ranks,
        )  # fmt: skip
    elif rank.process not in moved or rank.process.pid < 0:
        instead = group.furthest(member, ahead=True) if why == "another" else None
        yield members.late(
            group.communicator, rank, why,
            function=function, launched=(launched, most), instead=instead,
        )  # fmt: skip


def _is_minority(late: Sequence[LateRank], communicators: Sequence[Communicator]) -> bool:
    """Whether at most half of the ranks of each communicator are dead: more are as a job ends."""
    sizes = {each.name: each.size for each in communicators}
    num_late = Counter[str]()
    num_late.update(each.communicator for each in late if each.why == "dead")
    return all(2 * number <= (sizes[name] or math.inf) for name, number in num_late.items())
