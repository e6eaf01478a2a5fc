"""What is wrong with a GPU, by what its driver reports."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from lockstep_agent.health.facts import Facts, Labels
from lockstep_agent.health.signs import Limits, Sign
from lockstep_catalogue import gpu
from lockstep_catalogue.incidents import DEGRADED, FAILED, GPU_HEALTH

# Recovery actions of the driver that can wait until the job has ended; the others cannot.
_CAN_WAIT = frozenset({"drain_p2p", "recover_imex"})
_FLAGS = (
    (gpu.GPU_REMAP_FAILED, (), FAILED, "remap_failed"),
    (gpu.GPU_REMAP_PENDING, (), DEGRADED, "remap_pending"),
    (gpu.GPU_RETIRED_PENDING, (), DEGRADED, "retirement_pending"),
    (gpu.GPU_SRAM_THRESHOLD_EXCEEDED, (), FAILED, "sram_threshold"),
    # Volatile counts begin with the driver; aggregate ones hold errors that were repaired long ago.
    (gpu.GPU_ECC_ERRORS, ("uncorrected", "volatile"), DEGRADED, "uncorrected_ecc"),
)


@dataclass(frozen=True, slots=True)
class LinksSeen:
    """Most links and highest rate of each GPU model on this node since the start.

    The datasheet's number would not do: with bridges between pairs of GPUs every GPU has fewer
    links than its chip, and none is missing.
    """

    links: dict[str, float] = field(default_factory=dict)
    rate: dict[str, float] = field(default_factory=dict)

    def learn(self, facts: Facts, models: Mapping[Labels, str]) -> None:
        """Takes in the links that the GPUs have now."""
        for part, model in models.items():
            links = facts.value(gpu.NVLINK_LINKS, *part, "active")
            rate = facts.value(gpu.NVLINK_SPEED_MIN, *part)
            self.links[model] = max(self.links.get(model, 0), links or 0)
            self.rate[model] = max(self.rate.get(model, 0), rate or 0)


def gpu_signs(facts: Facts, seen: LinksSeen, limits: Limits) -> Iterator[Sign]:
    """Everything wrong with any GPU."""
    models = {labels[:2]: labels[2] for labels in facts.of(gpu.GPU_INFO)}
    seen.learn(facts, models)
    for labels in facts.of(gpu.GPU_STATE_INFO):
        if labels[2] != "ok":
            yield Sign(GPU_HEALTH, labels[:2], FAILED, labels[2])
    for labels in facts.of(gpu.GPU_RECOVERY_ACTION):
        if labels[2] != "none":
            verdict = DEGRADED if labels[2] in _CAN_WAIT else FAILED
            yield Sign(GPU_HEALTH, labels[:2], verdict, "recovery_action")
    for part in facts.of(gpu.GPU_UP):
        for metric, extra_labels, verdict, reason in _FLAGS:
            if facts.is_set(metric, *part, *extra_labels):
                yield Sign(GPU_HEALTH, part, verdict, reason)
        yield from _pcie(facts, part, limits)
        yield from _nvlink(facts, part, models.get(part, ""), seen, limits)
        yield from _clocks(facts, part, limits)


def _pcie(facts: Facts, part: Labels, limits: Limits) -> Iterator[Sign]:
    """A link below what GPU and slot can do together, under load: an idle link may sleep."""
    # Unknown utilization counts as idle: then the speed of the link says nothing.
    if (facts.value(gpu.GPU_UTILIZATION, *part) or 0) < limits.busy_ratio:
        return
    pairs = (
        (gpu.GPU_PCIE_GENERATION, gpu.GPU_PCIE_GENERATION_MAX),
        (gpu.GPU_PCIE_WIDTH, gpu.GPU_PCIE_WIDTH_MAX),
    )
    values = [(facts.value(now, *part), facts.value(highest, *part)) for now, highest in pairs]
    if any(now is not None and highest is not None and now < highest for now, highest in values):
        yield Sign(GPU_HEALTH, part, DEGRADED, "pcie_below_max", limits.link_hold_seconds)


def _nvlink(
    facts: Facts, part: Labels, model: str, seen: LinksSeen, limits: Limits
) -> Iterator[Sign]:
    links = facts.value(gpu.NVLINK_LINKS, *part, "active")
    if links is not None and links < seen.links.get(model, 0):
        yield Sign(GPU_HEALTH, part, DEGRADED, "nvlink_down")
    rate = facts.value(gpu.NVLINK_SPEED_MIN, *part)
    if rate is not None and rate < seen.rate.get(model, 0):
        yield Sign(GPU_HEALTH, part, DEGRADED, "nvlink_slow", limits.link_hold_seconds)
    if facts.is_set(gpu.NVLINK_FABRIC_STATE, *part, "failed"):
        yield Sign(GPU_HEALTH, part, FAILED, "fabric_failed")
    checks = facts.of(gpu.NVLINK_FABRIC_UNHEALTHY)
    if any(value > 0 for labels, value in checks.items() if labels[:2] == part):
        yield Sign(GPU_HEALTH, part, DEGRADED, "fabric_unhealthy")


def _clocks(facts: Facts, part: Labels, limits: Limits) -> Iterator[Sign]:
    """Clocks held back for longer than a change of load takes.

    A GPU at its default power limit is at work: the cap counts only when somebody lowered it.
    """
    reasons = ("sw_thermal", "hw_thermal", "hw_power_brake", "sw_power_cap", "hw_slowdown")
    held = {reason for reason in reasons if facts.is_set(gpu.GPU_THROTTLE_ACTIVE, *part, reason)}
    enforced, default = (
        facts.value(gpu.GPU_POWER_LIMIT, *part, kind) for kind in ("enforced", "default")
    )
    lowered = enforced is not None and default is not None and enforced < default
    thermal = bool(held & {"sw_thermal", "hw_thermal"})
    power = "hw_power_brake" in held or (lowered and "sw_power_cap" in held)
    hold_seconds = limits.throttle_hold_seconds
    if thermal:
        yield Sign(GPU_HEALTH, part, DEGRADED, "thermal", hold_seconds)
    if power:
        yield Sign(GPU_HEALTH, part, DEGRADED, "power_capped", hold_seconds)
    if "hw_slowdown" in held and not thermal and not power:
        yield Sign(GPU_HEALTH, part, DEGRADED, "slowdown", hold_seconds)
