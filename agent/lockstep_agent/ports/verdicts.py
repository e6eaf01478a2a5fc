"""The verdict on a port: ok, degraded or failed, with its reason. Plain facts in, verdict out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

_LINK_DOWNS = 3  # as gpud, which calls three cycles a flap
_ERRORS_PER_HOUR = 120.0  # NVSentinel's limit for symbol errors
_RATE_SLACK = 0.99  # rates are rounded to a tenth of a gigabit


@dataclass(frozen=True, kw_only=True, slots=True)
class PortFacts:
    """The state of a port at one moment; None for what is unknown.

    Attributes:
        labels: values of the labels ``device`` and ``port``.
        kind: ports of one kind are built alike and have the same rate.
        at_seconds: monotonic clock.
        is_up: whether the port carries traffic; None where its driver hard-codes the answer.
        was_up: whether it was ever up since boot; a port without a cable never is.
        bytes_per_second: rate of the link in one direction.
        interface_bytes_per_second: rate by the network interface of the same port.
        lanes: number of lanes that the link runs on.
        link_downs: losses of the link by the adapter, whose counter stops at 255.
        carrier_downs: losses of the link by the interface of the port.
        link_errors: errors of the link, all kinds added up.
        broken_connections: connections that broke because their retries were used up.
        is_saturated: whether a counter stands at its ceiling and hides further errors.
        pcie_ratio: bandwidth of the adapter's PCIe link, divided by what both ends support.
    """

    labels: tuple[str, str]
    kind: str
    at_seconds: float
    is_up: bool | None = None
    was_up: bool = False
    bytes_per_second: float | None = None
    interface_bytes_per_second: float | None = None
    lanes: int | None = None
    link_downs: int | None = None
    carrier_downs: int | None = None
    link_errors: int | None = None
    broken_connections: int | None = None
    is_saturated: bool = False
    pcie_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class PortVerdict:
    """A verdict and its reason, values of the labels ``verdict`` and ``port_reason``."""

    verdict: str
    reason: str


OK = PortVerdict("ok", "none")


def judge_port(
    history: Sequence[PortFacts],
    expected_bytes_per_second: float | None = None,
    expected_lanes: int | None = None,
) -> PortVerdict | None:
    """The verdict on a port; None for a port that was never up.

    Args:
        history: facts of the port over the window, oldest first.
        expected_bytes_per_second: rate of ports of its kind.
        expected_lanes: number of lanes of ports of its kind.
    """
    now = history[-1]
    is_down = now.is_up is False
    if is_down and not now.was_up and not any(facts.is_up for facts in history):
        return None
    is_slow = _is_below(now.bytes_per_second, expected_bytes_per_second)
    broke = _increase([facts.broken_connections for facts in history]) > 0
    # the worst first: the first that holds is the verdict
    signs = (
        (is_down, "failed", "down"),
        (_link_downs(history) >= _LINK_DOWNS, "failed", "flapping"),
        (broke, "degraded", "retries"),
        (is_slow, "degraded", "rate"),
        (_is_below(now.lanes, expected_lanes), "degraded", "lanes"),
        (_has_errors(history), "degraded", "errors"),
        (now.is_saturated, "degraded", "blind"),
        (_is_below(now.pcie_ratio, 1.0), "degraded", "pcie"),
    )
    return next((PortVerdict(verdict, reason) for holds, verdict, reason in signs if holds), OK)


def best_rates(ports: Iterable[PortFacts], earlier: dict[str, float]) -> dict[str, float]:
    """The highest rate of each kind of port in bytes per second, now and earlier."""
    best = dict(earlier)
    for facts in ports:
        if facts.bytes_per_second and facts.is_up is not False:
            best[facts.kind] = max(best.get(facts.kind, 0.0), facts.bytes_per_second)
    return best


def _is_below(value: float | None, expected: float | None) -> bool:
    return value is not None and expected is not None and value < expected * _RATE_SLACK


def _link_downs(history: Sequence[PortFacts]) -> int:
    # the larger of two counts: the adapter's stops at 255, and an InfiniBand port without IP has no
    # interface that counts
    by_adapter = _increase([facts.link_downs for facts in history])
    return max(by_adapter, _increase([facts.carrier_downs for facts in history]))


def _increase(counts: Sequence[int | None]) -> int:
    """Increase of a counter over the window; after a reset it counts from 0."""
    values = [count for count in counts if count is not None]
    return sum(after - before if after >= before else after for before, after in pairwise(values))


def _has_errors(history: Sequence[PortFacts]) -> bool:
    hours = (history[-1].at_seconds - history[0].at_seconds) / 3600
    increase = _increase([facts.link_errors for facts in history])
    # at least one minute's worth: over a short window a single error would mean many an hour
    return increase > max(_ERRORS_PER_HOUR * hours, _ERRORS_PER_HOUR / 60)
