"""What an operator says that a node must have; what is not said is learnt from what was there."""

import re
from dataclasses import dataclass

_BYTES_PER_SECOND_OF_ONE_GIGABIT = 125_000_000
_PORT = re.compile(r"(?P<device>[^\s:/]{1,64})(:(?P<rate>[0-9]{1,5}(\.[0-9]{1,3})?))?")


@dataclass(frozen=True, slots=True)
class ExpectedPort:
    """A port that must be up, at this rate or better where one is told.

    Attributes:
        rate: in bytes a second and direction.
    """

    device: str
    rate: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Expectations:
    """What the node must have; None and empty are: what was seen since the start.

    Attributes:
        gpus: how many GPUs.
        ports: the ports that must be up, beside what their collector judges for itself.
    """

    gpus: int | None = None
    ports: tuple[ExpectedPort, ...] = ()


def read_port(told: str) -> ExpectedPort:
    """The port in ``DEVICE`` or ``DEVICE:GIGABITS``.

    Raises:
        ValueError: it is neither.
    """
    parts = _PORT.fullmatch(told)
    if parts is None or not told.isprintable():
        raise ValueError(f"{told!r} is not DEVICE or DEVICE:GIGABITS, such as eth0 or mlx5_0:200")
    rate = parts["rate"]
    return ExpectedPort(
        parts["device"], float(rate) * _BYTES_PER_SECOND_OF_ONE_GIGABIT if rate else None
    )
