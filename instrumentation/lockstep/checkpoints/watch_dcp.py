"""One line for loops that save with ``torch.distributed.checkpoint``."""

from typing import TYPE_CHECKING

from lockstep.monitor.protocol import Monitor

if TYPE_CHECKING:
    from lockstep.checkpoints.dcp import DcpWatch


def watch_dcp(monitor: Monitor, rank: int | None = None) -> "DcpWatch":
    """Counts what ``torch.distributed.checkpoint`` saves and loads in this thread from now on.

    Put no block of ``monitor.checkpoint`` around DCP's calls then: they would be counted twice.

    Args:
        monitor: who is told.
        rank: of this process, by which its own files are known; that of torch.distributed where
            left out, and 0 without it.

    Returns:
        What listens; ``close()`` ends it.
    """
    import torch.distributed as dist  # noqa: PLC0415  # torch is loaded only where it is used

    from lockstep.checkpoints.dcp import DcpWatch  # noqa: PLC0415  # the same

    if rank is None:
        rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
    return DcpWatch(monitor, rank)
