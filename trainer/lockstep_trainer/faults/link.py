"""A rank's link to the others, slowed and restored from inside its network namespace."""

import json
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

LINK, RELAY = "LOCKSTEP_LINK", "LOCKSTEP_RELAY"
# Enough for a full-speed burst of 10 ms at 50 Mbit/s; a smaller one would cap the rate itself.
_BURST_BYTES = 65_536
_QUEUE_MILLISECONDS = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class Conditions:
    """Conditions of a link; the defaults are those of a healthy one.

    Attributes:
        bits_per_second: limit of what the rank sends; None for no limit.
        delay_seconds: delay of every packet in each direction.
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
