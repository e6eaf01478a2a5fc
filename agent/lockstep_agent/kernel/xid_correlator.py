"""Joins the driver's Xid events with the kernel log, so that each incident counts once.

The log is the better source: in a burst the driver drops events, an event names no process, and
events from before the agent's start are lost. An event counts where the log cannot be read or does
not report the Xid.
"""

from collections import deque
from collections.abc import Callable, Iterable

from lockstep_agent.kernel.finding import Finding
from lockstep_agent.kernel.incidents import NVML_EVENTS, Incidents
from lockstep_agent.sources.logs import Message
from lockstep_agent.sources.xid_event import XidEvent
from lockstep_catalogue.incidents import GPU_XID_INCIDENTS

_QUIET_SECONDS = 300.0
_LOG_TIMEOUT_SECONDS = 2.0  # for the log to report the same Xid
_MAX_WAITING = 1000


class XidCorrelator:
    """Holds events back until the log had time to report the same Xid.

    Args:
        clock: wall clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._waiting: deque[XidEvent] = deque(maxlen=_MAX_WAITING)

    def ingest(self, events: Iterable[XidEvent], incidents: Incidents) -> int:
        """Takes in events, and counts those whose time has passed.

        Returns:
            Number of events that were processed by this call.
        """
        # the log's message of the same Xid may be read a tick later
        self._waiting.extend(events)
        num_processed, latest_seconds = 0, self._clock() - _LOG_TIMEOUT_SECONDS
        while self._waiting and self._waiting[0].wall_seconds <= latest_seconds:
            _count_unreported(self._waiting.popleft(), incidents)
            num_processed += 1
        return num_processed


def _count_unreported(event: XidEvent, incidents: Incidents) -> None:
    instances = "/".join(f"{instance:02d}" for instance in event.instances)
    labels = (event.address, instances, str(event.number))
    finding = Finding(
        GPU_XID_INCIDENTS,
        labels,
        ("xid", *labels, ""),
        _QUIET_SECONDS,
        facts={"witness": NVML_EVENTS},
    )
    wall_seconds = event.wall_seconds
    is_ongoing = incidents.is_ongoing(NVML_EVENTS, finding, wall_seconds)
    # without the instance: only some sources name it, and it is the same Xid of the same GPU
    is_reported = incidents.is_recent_xid(event.address, str(event.number), wall_seconds)
    if is_ongoing or not is_reported:
        text = f"NVML: Xid {event.number} of {event.address}"
        incidents.add(NVML_EVENTS, finding, Message(text, wall_seconds, wall_seconds))
