"""The driver's own events as a second witness of Xids: what the kernel log told counts once.

Events are dropped in a burst, have no process, and those before the agent began are never told: so
the log goes first. Where it cannot be read, or has not told of a fault, the event counts.
"""

from collections import deque
from collections.abc import Callable, Iterable

from lockstep_agent.kernel.finding import Finding
from lockstep_agent.kernel.incidents import BY_EVENT, Incidents
from lockstep_agent.sources.logs import Message
from lockstep_agent.sources.xid_event import XidEvent
from lockstep_catalogue.events import GPU_XID_INCIDENTS

_QUIET_SECONDS = 300.0
_PATIENCE_SECONDS = 2.0  # for the log to tell of the same
_MOST_WAITING = 1000


class Witness:
    """Keeps events back until the log had its chance.

    Args:
        clock: wall clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._waiting: deque[XidEvent] = deque(maxlen=_MOST_WAITING)

    def hear(self, events: Iterable[XidEvent], incidents: Incidents) -> int:
        """Takes in events; gives how many of all were judged now."""
        self._waiting.extend(events)
        judged, latest = 0, self._clock() - _PATIENCE_SECONDS
        while self._waiting and self._waiting[0].wall_seconds <= latest:
            _add(self._waiting.popleft(), incidents)
            judged += 1
        return judged


def _add(event: XidEvent, incidents: Incidents) -> None:
    address = event.address
    instances = "/".join(f"{one:02d}" for one in event.instances)
    labels = (address, instances, str(event.number))
    finding = Finding(
        GPU_XID_INCIDENTS,
        labels,
        ("xid", *labels, ""),
        _QUIET_SECONDS,
        facts={"witness": BY_EVENT},
    )
    wall = event.wall_seconds
    own = incidents.lasts(BY_EVENT, finding, wall)
    if own or not incidents.told_lately(address, str(event.number), wall):
        text = f"NVML: Xid {event.number} of {address}"
        incidents.add(BY_EVENT, finding, Message(text, wall, wall))
