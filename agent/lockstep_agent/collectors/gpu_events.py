"""One GPU: the faults that its driver tells as events, kept for who counts them."""

from collections import deque
from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.sources.nvml import Gpu
from lockstep_agent.sources.nvml.events import Events

_MOST_WAITING = 1000


class GpuEvents:
    """Hears a GPU's Xids every ten seconds, and in the tick after it was lost.

    The driver keeps them until they are heard, and the kernel log has told of most by then.
    """

    name = "gpu_events"
    tier = Tier.TEN_SECONDS

    def __init__(self, gpu: Gpu) -> None:
        self._gpu, self._events = gpu, Events(gpu)

    def collect(self) -> Iterator[Reading]:
        """No readings: what was heard is put into ``gpu.xids``."""
        heard = self._events.read()
        if heard is None:
            self._gpu.xids = None
        elif self._gpu.xids is None:
            self._gpu.xids = deque(heard, maxlen=_MOST_WAITING)
        else:
            self._gpu.xids.extend(heard)
        return iter(())
