"""A rank's own link to the others, in its network namespace: slowed and restored from inside."""

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
    """How a link is; the defaults are a healthy one.

    Attributes:
        bits_per_second: most that the rank can send; None for no limit.
        delay_seconds: of every packet, each way.
        loss_ratio: share of packets that are lost, each way.
    """

    bits_per_second: int | None = None
    delay_seconds: float = 0.0
    loss_ratio: float = 0.0

    @property
    def need_relay(self) -> bool:
        """Whether a relay has to do it: this kernel's queues know rates, no delay and no loss."""
        return self.delay_seconds > 0 or self.loss_ratio > 0


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnLink:
    """The device of a rank's link, and the socket of the relay behind it where there is one."""

    device: str
    relay: Path | None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "OwnLink":
        """The link that ``network`` told a rank by its environment."""
        relay = environment.get(RELAY)
        return cls(device=environment[LINK], relay=Path(relay) if relay else None)

    def become(self, conditions: Conditions) -> None:
        """Makes the link so; needs the rights of root."""
        rate = conditions.bits_per_second
        tbf = f"tbf rate {rate}bit burst {_BURST_BYTES} latency {_QUEUE_MILLISECONDS}ms"
        queue = (tbf if rate else "noqueue").split()
        command = ["tc", "qdisc", "replace", "dev", self.device, "root", *queue]
        subprocess.run(command, check=True)
        assert self.relay or not conditions.need_relay
        if self.relay:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
                told.sendto(json.dumps(asdict(conditions)).encode(), str(self.relay))
