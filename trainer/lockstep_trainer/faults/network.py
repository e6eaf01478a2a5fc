"""A slow network of one rank: less bandwidth, and delay and loss in both directions of its link."""

import json
import os
import socket
import subprocess
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.faults.kind import Fault, Kind, Step, Target, Value
from lockstep_trainer.layout.world import Layout

LINK, RELAY = "LOCKSTEP_LINK", "LOCKSTEP_RELAY"
# Enough for a full-speed burst of 10 ms at 50 Mbit/s; a smaller one would cap the rate itself.
_BURST_BYTES = 65_536
_QUEUE_MILLISECONDS = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class Conditions:
    """Conditions of a link; the defaults are those of a healthy one.

    Attributes:
        bits_per_second: limit of what the rank sends; None for no limit.
        loss_ratio: share of packets lost in each direction, 0 to 1.
    """

    bits_per_second: int | None = None
    delay_seconds: float = 0.0
    loss_ratio: float = 0.0

    @property
    def need_relay(self) -> bool:
        """Whether the link needs a relay: a kernel without netem can limit a rate only."""
        return self.delay_seconds > 0 or self.loss_ratio > 0


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnLink:
    """A rank's network device, and the socket of the relay behind it if there is one."""

    device: str
    relay: Path | None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "OwnLink":
        """The link of this rank, from the variables that ``network`` sets."""
        relay = environment.get(RELAY)
        return cls(device=environment[LINK], relay=Path(relay) if relay else None)

    def apply(self, conditions: Conditions) -> None:
        """Sets the conditions of the link; needs root."""
        rate = conditions.bits_per_second
        tbf = f"tbf rate {rate}bit burst {_BURST_BYTES} latency {_QUEUE_MILLISECONDS}ms"
        # replace works whether a queue was set before or not, so restoring needs no state.
        queue = (tbf if rate else "noqueue").split()
        command = ["tc", "qdisc", "replace", "dev", self.device, "root", *queue]
        subprocess.run(command, check=True)
        # The command starts a relay for each rank whose faults need one.
        assert self.relay or not conditions.need_relay
        if self.relay:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.sendto(json.dumps(asdict(conditions)).encode(), str(self.relay))


NAME = "slow-network"


@contextmanager
def _slow(fault: Fault, target: Target) -> Step:
    link = OwnLink.of(os.environ)
    link.apply(conditions_of(fault))
    yield
    # The link stays as it is while the next step has the fault too.
    if not fault.is_due(target.batch[0] + 1):
        link.apply(Conditions())


def conditions_of(fault: Fault) -> Conditions:
    """The conditions of the link while the fault lasts."""
    return Conditions(
        bits_per_second=int(fault.values["mbit"] * 1e6) or None,
        delay_seconds=fault.values["delay"],
        loss_ratio=fault.values["loss_percent"] / 100,
    )


def _refuses(_fault: Fault, _config: TrainConfig, _layout: Layout) -> str | None:
    if LINK in os.environ:
        return None
    return (
        "it needs ranks in network namespaces of their own; in a checkout, start them as root by "
        "PYTHONPATH=bench python -m trainer_validation.slow_network"
    )


KIND = Kind(
    name=NAME,
    in_step=_slow,
    values=(
        Value(name="mbit", low=0, high=100_000, default=0),
        Value(name="delay", low=0, high=10, default=0, sort="duration"),
        Value(name="loss_percent", low=0, high=100, default=0),
    ),
    refuses=_refuses,
)
