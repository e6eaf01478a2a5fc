"""What a port lacks of what an operator said that it must be; a collector judges the rest."""

from collections.abc import Iterable, Iterator

from lockstep_agent.health.expected import ExpectedPort
from lockstep_agent.health.facts import Facts
from lockstep_agent.health.signs import Sign
from lockstep_catalogue import fabric, fabric_ports
from lockstep_catalogue.verdicts import DEGRADED, EXPECTED_PORT_HEALTH, FAILED

_UP = (fabric_ports.PORT_UP, fabric.NET_UP)
_RATE = (fabric_ports.PORT_RATE, fabric.NET_SPEED)
_PRESENT = (fabric_ports.PORT_INFO, *_UP, *_RATE)


def port_signs(facts: Facts, expected: Iterable[ExpectedPort]) -> Iterator[Sign]:
    """Everything that expected ports lack; of a device with several the worst counts.

    Args:
        facts: of one tick.
        expected: by name of the RDMA device or of the network interface.
    """
    for port in expected:
        at = (port.device,)
        told = {
            metric: [value for labels, value in facts.of(metric).items() if labels[:1] == at]
            for metric in _PRESENT
        }
        up = [value for metric in _UP for value in told[metric]]
        rates = [value for metric in _RATE for value in told[metric]]
        if not any(told.values()):
            yield Sign(EXPECTED_PORT_HEALTH, at, FAILED, "missing")
        if not all(up):
            yield Sign(EXPECTED_PORT_HEALTH, at, FAILED, "not_up")
        if port.rate is not None and rates and min(rates) < port.rate:
            yield Sign(EXPECTED_PORT_HEALTH, at, DEGRADED, "rate_below_expected")
