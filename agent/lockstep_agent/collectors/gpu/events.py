"""One GPU: the Xid events of its driver, queued for the collector that counts them."""

from collections import deque
from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.sources.nvml import Gpu
from lockstep_agent.sources.nvml.events import Events

_MAX_WAITING = 1000


class GpuEvents:
    """Takes a GPU's Xids from its driver every ten seconds, and in the tick after it was lost."""

    name = "gpu_events"
    # the driver queues events until they are taken, and by then the kernel log has reported most
    tier = Tier.TEN_SECONDS

    def __init__(self, gpu: Gpu) -> None:
        self._gpu, self._events = gpu, Events(gpu)

    def collect(self) -> Iterator[Reading]:
        """No readings; appends the events to ``gpu.xids``."""
        events = self._events.read()
        if events is None:
            self._gpu.xids = None
        elif self._gpu.xids is None:
            self._gpu.xids = deque(events, maxlen=_MAX_WAITING)
        else:
            self._gpu.xids.extend(events)
        return iter(())
