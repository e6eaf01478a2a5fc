"""What a port is worth now: ok, degraded or failed, and why. Facts in, verdict out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

_RATE_SLACK = 0.99  # rates are rounded to a tenth of a gigabit


@dataclass(frozen=True, kw_only=True, slots=True)
class PortFacts:
    """What is known of a port at one moment; None is unknown.

    Attributes:
        labels: values of the labels ``device`` and ``port``.
        kind: ports of one kind are built alike and can do alike.
        at_seconds: monotonic clock.
        is_up: whether it carries traffic; None where its driver never says otherwise.
        was_up: whether it carried any since boot: a port without a cable never did.
        rate: bytes per second and direction.
        told_rate: what the interface of the same port says of the rate.
        downs: how often the link went down, by the adapter, which stops to count at 255.
        carrier_downs: the same by the interface of the port.
        errors: errors of the link, all kinds added up.
        broken: connections that broke because retries were used up.
        saturated: whether a counter stands at its ceiling, so that nothing more is to be seen.
        pcie_ratio: what the adapter's PCIe link runs at, against what both ends can do.
    """

    labels: tuple[str, str]
    kind: str
    at_seconds: float
    is_up: bool | None = None
    was_up: bool = False
    rate: float | None = None
    told_rate: float | None = None
    lanes: int | None = None
    downs: int | None = None
    carrier_downs: int | None = None
    errors: int | None = None
    broken: int | None = None
    saturated: bool = False
    pcie_ratio: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PortLimits:
    """Where judging begins, over the window that the facts span.

    Attributes:
        downs: losses of the link from which on it flaps.
        errors_per_hour: errors of the link from which on it is marginal.
        pcie_ratio: below which the adapter's PCIe link is too slow.
    """

    downs: int = 3
    errors_per_hour: float = 120.0
    pcie_ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class PortVerdict:
    """A verdict and its reason, values of the labels ``verdict`` and ``port_reason``."""

    verdict: str
    reason: str


OK = PortVerdict("ok", "none")


def judge_port(
    history: Sequence[PortFacts],
    expected_rate: float | None = None,
    expected_lanes: int | None = None,
    limits: PortLimits | None = None,
) -> PortVerdict | None:
    """The verdict on a port; None for one of which nothing can be said.

    Args:
        history: its facts over the window, the oldest first.
        expected_rate: what ports of its kind run at.
        expected_lanes: how many lanes ports of its kind run on.
        limits: by default those that ``PortLimits`` names.
    """
    limits = limits or PortLimits()
    now = history[-1]
    is_down = now.is_up is False
    if is_down and not now.was_up and not any(facts.is_up for facts in history):
        return None
    signs = (
        (is_down, "failed", "down"),
        (_downs(history) >= limits.downs, "failed", "flapping"),
        (_risen([facts.broken for facts in history]) > 0, "degraded", "retries"),
        (_is_below(now.rate, expected_rate), "degraded", "rate"),
        (_is_below(now.lanes, expected_lanes), "degraded", "lanes"),
        (_has_errors(history, limits), "degraded", "errors"),
        (now.saturated, "degraded", "blind"),
        (_is_below(now.pcie_ratio, limits.pcie_ratio), "degraded", "pcie"),
    )
    return next((PortVerdict(verdict, why) for holds, verdict, why in signs if holds), OK)


def best_rates(ports: Iterable[PortFacts], known: dict[str, float]) -> dict[str, float]:
    """The best rate of each kind of port: of these ports and of what was known before."""
    best = dict(known)
    for facts in ports:
        if facts.rate and facts.is_up is not False:
            best[facts.kind] = max(best.get(facts.kind, 0.0), facts.rate)
    return best


def _is_below(rate: float | None, expected: float | None) -> bool:
    return rate is not None and expected is not None and rate < expected * _RATE_SLACK


def _downs(history: Sequence[PortFacts]) -> int:
    by_adapter = _risen([facts.downs for facts in history])
    return max(by_adapter, _risen([facts.carrier_downs for facts in history]))


def _risen(counts: Sequence[int | None]) -> int:
    """How far a counter rose over the window; one that was cleared begins anew."""
    known = [count for count in counts if count is not None]
    steps = pairwise(known)
    return sum(after - before if after >= before else after for before, after in steps)


def _has_errors(history: Sequence[PortFacts], limits: PortLimits) -> bool:
    hours = (history[-1].at_seconds - history[0].at_seconds) / 3600
    risen = _risen([facts.errors for facts in history])
    # over a short window a single error would pass for many an hour
    return risen > max(limits.errors_per_hour * hours, limits.errors_per_hour / 60)
