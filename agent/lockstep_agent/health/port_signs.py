"""How a port falls short of what an operator expects; a collector judges the rest."""

from collections.abc import Iterable, Iterator

from lockstep_agent.health.expected import ExpectedPort
from lockstep_agent.health.facts import Facts
from lockstep_agent.health.signs import Sign
from lockstep_catalogue import fabric
from lockstep_catalogue.incidents import DEGRADED, EXPECTED_PORT_HEALTH, FAILED

_UP = (fabric.PORT_UP, fabric.NET_UP)
_RATE = (fabric.PORT_RATE, fabric.NET_SPEED)
_PRESENT = (fabric.PORT_INFO, *_UP, *_RATE)


def port_signs(facts: Facts, expected: Iterable[ExpectedPort]) -> Iterator[Sign]:
    """Every fault of expected ports; of a device with several ports the worst counts.

    Args:
        facts: of one tick.
        expected: by name of the RDMA device or of the network interface.
    """
    for port in expected:
        part = (port.device,)
        values = {
            metric: [value for labels, value in facts.of(metric).items() if labels[:1] == part]
            for metric in _PRESENT
        }
        up = [value for metric in _UP for value in values[metric]]
        rates = [value for metric in _RATE for value in values[metric]]
        if not any(values.values()):
            yield Sign(EXPECTED_PORT_HEALTH, part, FAILED, "missing")
        if not all(up):
            yield Sign(EXPECTED_PORT_HEALTH, part, FAILED, "not_up")
        if port.rate is not None and rates and min(rates) < port.rate:
            yield Sign(EXPECTED_PORT_HEALTH, part, DEGRADED, "rate_below_expected")
