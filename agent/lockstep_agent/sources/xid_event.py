"""An Xid of a GPU as its driver reports it in an event."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class XidEvent:
    """One event.

    Attributes:
        address: PCI address of the GPU as /sys writes it.
        instances: numbers of the GPU instance and the compute instance, where the event has them.
        wall_seconds: wall clock at which the agent received the event.
    """

    address: str
    number: int
    instances: tuple[int, ...]
    wall_seconds: float
