"""A sign of trouble on a node: what a source recorded around the time of an episode."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Sign:
    """Trouble on the node of a slow rank while it was slow.

    Attributes:
        cause: what it is, such as ``thermal_throttling``.
        begin_time: first moment of it in the window, seconds since 1970; ``end_time`` is the last.
        value: its highest value there, per second for what counts; ``unit`` names it.
        source: address and series, or file, that recorded it.
        proven: whether sign and slowness begin and end together, and no other node shows it.
    """

    cause: str
    node: str
    begin_time: float
    end_time: float
    value: float
    unit: str
    source: str
    proven: bool
    episode_start_step: int
