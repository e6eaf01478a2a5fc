"""What is wrong with a network interface: gone, down, slower than expected, up and down."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from lockstep_agent.health.expected import Expectations
from lockstep_agent.health.facts import Facts
from lockstep_agent.health.limits import Limits
from lockstep_agent.health.signs import Sign
from lockstep_catalogue import fabric
from lockstep_catalogue.verdicts import DEGRADED, FAILED, NET_HEALTH

_MOST_KEPT = 4096


@dataclass(frozen=True, slots=True)
class NetSeen:
    """Which interfaces were up since the start, and how often their carrier changed, and when."""

    up: set[str] = field(default_factory=set)
    changes: dict[str, deque[tuple[float, float]]] = field(default_factory=dict)

    def learn(self, facts: Facts, now_seconds: float, window_seconds: float) -> None:
        """Takes in what the interfaces tell now; forgets what is older than the window."""
        self.up.update(labels[0] for labels, up in facts.of(fabric.NET_UP).items() if up)
        told = facts.of(fabric.NET_CARRIER_CHANGES)
        for device in [device for device in self.changes if (device,) not in told]:
            del self.changes[device]
        for (device,), count in told.items():
            kept = self.changes.setdefault(device, deque(maxlen=_MOST_KEPT))
            if kept and kept[-1][1] > count:
                kept.clear()  # the device was made anew
            if not kept or kept[-1][1] != count:
                kept.append((now_seconds, count))
            while len(kept) > 1 and kept[1][0] <= now_seconds - window_seconds:
                kept.popleft()

    def changed(self, device: str) -> float:
        """Carrier changes within the window."""
        kept = self.changes.get(device)
        return kept[-1][1] - kept[0][1] if kept else 0


def net_signs(
    facts: Facts, seen: NetSeen, expected: Expectations, limits: Limits, now_seconds: float
) -> Iterator[Sign]:
    """Everything wrong with any network interface.

    Nobody knows which sockets have a cable, so an interface that is down counts only when it is
    expected, or, where nothing is expected, when it was up before.

    Args:
        facts: of one tick.
        seen: learns from these facts too.
        expected: what the node must have.
        limits: from when on a sign counts.
        now_seconds: on a monotonic clock.
    """
    seen.learn(facts, now_seconds, limits.flap_window_seconds)
    expected_rate = {port.device: port.rate for port in expected.ports}
    up = {labels[0]: value for labels, value in facts.of(fabric.NET_UP).items()}
    for device, value in up.items():
        must_be_up = device in expected_rate if expected_rate else device in seen.up
        if must_be_up and not value:
            yield Sign(NET_HEALTH, (device,), FAILED, "down")
        if seen.changed(device) >= limits.flap_changes:
            yield Sign(NET_HEALTH, (device,), DEGRADED, "flapping")
    for device, rate in expected_rate.items():
        if device not in up:
            yield Sign(NET_HEALTH, (device,), FAILED, "missing")
        told = facts.value(fabric.NET_SPEED, device)
        if rate is not None and told is not None and told < rate:
            yield Sign(NET_HEALTH, (device,), DEGRADED, "rate_below_expected")
