"""Pressure stall information: how long tasks waited for processor, memory or storage."""

import re
from collections.abc import Iterator

_TOTAL = re.compile(r"^(some|full) .*\btotal=([0-9]{1,20})$", re.MULTILINE)
_MICRO = 1e-6


def stalled_seconds(text: str | None) -> Iterator[tuple[str, float]]:
    """Pairs of ``some`` or ``full`` and seconds, since boot or since the group was created.

    Args:
        text: a file such as ``/proc/pressure/cpu`` or ``cpu.pressure``; None gives no pairs.
    """
    # the totals, not avg10 and its kin: a counter loses nothing between two scrapes
    for pressure, total in _TOTAL.findall(text or ""):
        yield pressure, int(total) * _MICRO
