"""Owners of a sign, such as an Xid: the ranks that were there when it happened."""

from collections.abc import Iterable
from dataclasses import dataclass

from lockstep_records.events.event import Event

LATE_SECONDS = 5.0
"""By how much a line about a fault may come after the end of the process that it ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Presence:
    """A rank of an attempt on its node.

    Attributes:
        end: of its end; None while it runs.
        pid: of its process as the kernel of the node counts; None where that is unknown.
        device: UUID of its GPU, or of the instance of one; empty on a CPU.
    """

    job_id: str
    attempt: int
    rank: int
    begin: float
    end: float | None = None
    pid: int | None = None
    device: str = ""

    def lateness(self, time: float) -> float | None:
        """Seconds by which a moment is after its end, 0 within its life; None where neither."""
        late = 0.0 if self.end is None else max(0.0, time - self.end)
        return late if time >= self.begin and late <= LATE_SECONDS else None


@dataclass(frozen=True, kw_only=True, slots=True)
class SignOrigin:
    """Where a sign was, at moments at which it is known: a pid, or UUIDs of a GPU, where named."""

    times: tuple[float, ...]
    pid: int | None = None
    devices: frozenset[str] | None = None


def find_owners(sign: SignOrigin, presences: Iterable[Presence]) -> list[Presence]:
    """The ranks that a sign belongs to.

    Of those who were present: the process that it names, else all on its GPU, else all of the node.
    Who had just ended is taken where nobody was there at that moment.
    """
    present = [
        (presence, min(late))
        for presence in presences
        if (late := [each for at in sign.times if (each := presence.lateness(at)) is not None])
    ]
    if sign.devices is not None:
        present = [each for each in present if each[0].device in sign.devices]
    if sign.pid is not None:
        named = [each for each in present if each[0].pid == sign.pid]
        is_stranger = all(presence.pid is not None for presence, _ in present)
        if named or is_stranger or sign.devices is None:
            present = named
    least = min((late for _, late in present), default=0.0)
    return [presence for presence, late in present if late == least or not late]


def drop_strangers(events: Iterable[Event]) -> list[Event]:
    """A job's events without signs of times at which its attempt did not run."""
    events = list(events)
    begins: dict[int, float] = {}
    ends: dict[int, float] = {}
    for event in events:
        if event.kind == "attempt_started":
            begins[event.attempt] = min(event.time, begins.get(event.attempt, event.time))
        elif event.kind == "attempt_ended":
            ends[event.attempt] = max(event.time, ends.get(event.attempt, event.time))
    return [
        event
        for event in events
        if event.kind != "node_event"
        or Presence(
            job_id=event.job_id,
            attempt=event.attempt,
            rank=0,
            begin=begins.get(event.attempt, 0.0),
            end=ends.get(event.attempt),
        ).lateness(event.time)
        is not None
    ]
