"""Parts that an operator expects of a node; what is not given is learnt from what was seen."""

import re
from dataclasses import dataclass

_GIGABIT_BYTES = 125_000_000
_PORT = re.compile(r"(?P<device>[^\s:/]{1,64})(:(?P<rate>[0-9]{1,5}(\.[0-9]{1,3})?))?")


@dataclass(frozen=True, slots=True)
class ExpectedPort:
    """A port that must be up, at this rate or better where one is given.

    Attributes:
        rate: bytes a second in each direction; None for any.
    """

    device: str
    rate: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Expectations:
    """What the node must have; None and empty mean what was seen since the start."""

    gpus: int | None = None
    ports: tuple[ExpectedPort, ...] = ()


def read_port(text: str) -> ExpectedPort:
    """The port in ``DEVICE`` or ``DEVICE:GIGABITS``.

    Raises:
        ValueError: it is neither.
    """
    parts = _PORT.fullmatch(text)
    if parts is None or not text.isprintable():
        raise ValueError(f"{text!r} is not DEVICE or DEVICE:GIGABITS, such as eth0 or mlx5_0:200")
    rate = parts["rate"]
    return ExpectedPort(parts["device"], float(rate) * _GIGABIT_BYTES if rate else None)
