"""A fault of a GPU as its driver told it in an event."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class XidEvent:
    """One event.

    Attributes:
        address: PCI address of the GPU as /sys writes it.
        number: the Xid.
        instances: numbers of the GPU instance and the compute instance, where it named them.
        wall_seconds: when it was heard.
    """

    address: str
    number: int
    instances: tuple[int, ...]
    wall_seconds: float
