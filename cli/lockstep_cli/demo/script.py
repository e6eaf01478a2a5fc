"""The fault that the demo injects: drawn at random, with durations converted to steps."""

import random
from dataclasses import dataclass

from lockstep_catalogue.windows import ScrapeWindows

_CLEAN_WINDOWS = (1.2, 1.6)  # a healthy job is watched first
_FAULT_WINDOWS = 1.75  # the window, a scrape, and the three that a page may take besides
_DELIVERY_SECONDS = 15.0
_RECOVERY_SECONDS = 25.0  # beyond the live window, so that the page is resolved


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """The job and its fault; ``rank`` is None in a healthy run."""

    ranks: int
    steps: int
    rank: int | None
    phase: str
    slow_ms: int
    from_step: int
    until_step: int

    @property
    def sentence(self) -> str:
        """The job and its fault in one line."""
        if self.rank is None:
            return f"{self.ranks} healthy ranks, {self.steps} steps"
        return (
            f"rank {self.rank} of {self.ranks} slowed by {self.slow_ms} ms in {self.phase}, "
            f"steps {self.from_step} to {self.until_step} of {self.steps}"
        )


def draw_script(
    chance: random.Random,
    step_seconds: float,
    ranks: int,
    fault: tuple[str, str],
    windows: ScrapeWindows,
) -> Script:
    """Draws rank and time; durations are in seconds, so that quick and slow machines agree.

    Args:
        chance: source of randomness.
        step_seconds: duration of a healthy step on this machine.
        ranks: number of ranks.
        fault: ``one`` or ``none``, and the phase in which one rank is slow.
        windows: what the scrape interval decides: a healthy window, a fault that lasts until the
            page has come, and a window in which it is resolved.
    """
    slow, phase = fault
    slow_seconds = max(0.05, 1.2 * step_seconds)
    clean_seconds = windows.live_seconds * chance.uniform(*_CLEAN_WINDOWS)
    fault_seconds = windows.live_seconds * _FAULT_WINDOWS + _DELIVERY_SECONDS
    from_step = int(clean_seconds / step_seconds)
    until_step = from_step + int(fault_seconds / (step_seconds + slow_seconds))
    rank = chance.randrange(ranks) if slow == "one" else None
    return Script(
        ranks=ranks,
        steps=until_step + int((windows.live_seconds + _RECOVERY_SECONDS) / step_seconds),
        rank=rank,
        phase=phase,
        slow_ms=round(slow_seconds * 1e3),
        from_step=from_step,
        until_step=until_step,
    )


def fault_flags(script: Script) -> tuple[str, ...]:
    """The trainer's flags that make the fault; none in a healthy run."""
    if script.rank is None:
        return ()
    words = (
        f"rank={script.rank}",
        f"step={script.from_step}",
        f"until={script.until_step}",
        f"delay={script.slow_ms}ms",
    )
    return "--fault", f"slow-{script.phase}:{','.join(words)}"
