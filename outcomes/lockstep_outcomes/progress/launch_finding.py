"""Findings from answers of NCCL's status socket, in values and in words."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from lockstep_outcomes.progress.missing import rank_words
from lockstep_records.nccl.ras_answer import ANY_FUNCTION, Absence, ProcessDevice
from lockstep_records.text.durations import format_duration

Kind = Literal["hang", "suspect", "moving", "still", "unseen", "starting", "ending"]
"""`hang`: ranks hold the others up. `suspect`: they do in an answer, and may not in the next.
`moving`: ranks have launched something since the last poll. `still`: none has, and none is
apart. `unseen`: nothing is counted. `starting`, `ending`: all communicators are."""
Why = Absence | Literal["behind", "ahead", "another"]
"""Why a rank is named: besides its silence, it has launched less; it alone has launched more; it
has launched as much, and not the same."""
_MAX_NAMED = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class LateRank:
    """A rank that others wait for, or seem to.

    Attributes:
        rank: of the job; where only its number in the communicator is known, that.
        is_of_job: which of the two.
        function: in which it is furthest behind, or ahead; empty where it did not answer.
        launched: of that function, by it and, at most, by others.
        instead: a function that it has called more often than the others, and both numbers.
        num_ranks: that are meant: a text may count several without naming them, rank is -1 then.
        act: what is counted.
    """

    rank: int
    is_of_job: bool
    process: ProcessDevice
    communicator: str
    why: Why
    function: str = ""
    launched: tuple[int, int] | None = None
    instead: tuple[str, int, int] | None = None
    num_ranks: int = 1
    act: Literal["launched", "completed"] = "launched"

    def words(self, fellows: Sequence["LateRank"] = ()) -> str:
        """A clause on the rank, with fellows of which the same is to be said."""
        where, ranks = f"communicator {self.communicator}", (self, *fellows)
        subject, num_ranks = name_ranks(ranks), sum(each.num_ranks for each in ranks)
        if self.launched is None:
            is_dead, are_many = self.why == "dead", num_ranks > 1
            verb = ("have" if are_many else "has") if is_dead else ("do" if are_many else "does")
            silence = "not answered for a minute" if is_dead else "not answer"
            if self.act == "completed":
                verb, silence = ("write", "nothing") if are_many else ("writes", "nothing")
            return f"{subject} {verb} {silence}" + (f", in {where}" if self.is_of_job else "")
        own, most = self.launched
        what = "collectives" if self.function == ANY_FUNCTION else self.function
        verb = ("alone " if self.why == "ahead" else "") + ("has" if num_ranks == 1 else "have")
        where = where if self.is_of_job else "it"
        words = f"{subject} {verb} {self.act} {own:,} {what} in {where}, the others {most:,}"
        if self.instead is not None:
            function, own, most = self.instead
            words += f", and {own:,} {function} to the others' {most:,}"
        return words


def name_ranks(ranks: Sequence[LateRank]) -> str:
    """Ranks of one communicator, with their processes and nodes."""
    first, hosts = ranks[0], {each.process.host for each in ranks}
    processes = [str(each.process) for each in ranks if str(each.process)]
    where = "; ".join(processes[:_MAX_NAMED]) + ("; ..." if processes[_MAX_NAMED:] else "")
    if len(processes) > 1 and len(hosts) == 1:
        where = f"all on {first.process.host}"
    where = f" ({where})" if where else ""
    if not first.communicator:
        return f"a process{where} of no communicator any more"
    of = "" if first.is_of_job else f" of communicator {first.communicator}"
    if first.rank < 0:
        return f"{first.num_ranks:,} ranks{of}, which the text does not name,"
    return f"{rank_words([each.rank for each in ranks])}{of}{where}"


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchFinding:
    """What several polls of one job show.

    Attributes:
        late: ranks that the others wait for, or seem to, the surest first.
        seconds: for which nothing has changed where they wait, or anywhere.
        num_polls: that showed the same.
        why: a clause: what is seen, or why nothing can be known.
        remarks: clauses on what may belong to it: errors that ranks report, ranks behind others
            beside those that do not answer.
    """

    kind: Kind
    why: str
    late: tuple[LateRank, ...] = ()
    seconds: float = 0.0
    num_polls: int = 1
    remarks: tuple[str, ...] = ()

    @property
    def named(self) -> str:
        """The late ranks as clauses, those of which the same is to be said in one; at most four."""
        same: dict[object, list[LateRank]] = {}
        for each in self.late:
            alike = replace(each, rank=min(each.rank, 0), process=ProcessDevice())
            same.setdefault(alike, []).append(each)
        clauses = [first.words(fellows) for first, *fellows in same.values()]
        rest = len(clauses) - _MAX_NAMED
        return "; ".join([*clauses[:_MAX_NAMED], *([f"{rest:,} others likewise"] * (rest > 0))])

    @property
    def sentence(self) -> str:
        """What they show, as one sentence."""
        lasted = f" over {format_duration(round(self.seconds))}" if self.seconds >= 1 else ""
        named = f"{self.named[:1].upper()}{self.named[1:]}"
        if self.kind == "hang":
            named = self.named or "no rank completes a collective"
            return f"The job hangs: {named}; {self.why}{lasted}."
        if self.late and self.late[0].launched is None:
            return f"{named}; {self.why}."
        if self.late:
            return f"It cannot be told yet whether the job hangs: {self.named}; {self.why}."
        if self.kind == "moving":
            return f"The job moves: {self.why}."
        begin = f"{self.remarks[0]}; whether" if self.remarks else "whether"
        return f"{begin[:1].upper()}{begin[1:]} the job moves is unknown: {self.why}."
