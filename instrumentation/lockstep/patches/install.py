"""Puts the instrumentation points of the table into torch.

A replacement stays for the life of the process, for somebody may have wrapped it again; when the
monitor goes, it reports to nobody.
"""

from collections.abc import Iterable
from typing import Any

from lockstep.patches import points
from lockstep.patches.table import REPLACED

_in_torch: set[tuple[str, str]] = set()
"""Owner and attribute of each replacement."""


def install(group: points.Group, table: Iterable[points.InstrumentationPoint] = REPLACED) -> None:
    """Replaces the attributes of one group, each of them once however often this is called.

    A point whose attribute this torch lacks is left out and logged once; the others work.
    """
    missing = []
    for point in table:
        if point.group != group or (point.owner, point.attribute) in _in_torch:
            continue
        original = points.find(point)
        if original is not None:
            _replace(point, original)
        elif not point.is_optional:
            missing.append(point)
    points.report_missing(missing)


def install_on(instance: Any, attribute: str, wrap: points.Wrapper) -> None:
    """Replaces a method of one object of the user; called again, the later replacement holds."""
    current = getattr(instance, attribute)
    # An earlier monitor's replacement is not wrapped: each call would be counted twice.
    original = getattr(current, points.ORIGINAL, current)
    replacement = wrap(original)
    setattr(replacement, points.ORIGINAL, original)
    setattr(instance, attribute, replacement)


def _replace(point: points.InstrumentationPoint, original: Any) -> None:
    assert point.wrap is not None
    if hasattr(original, points.ORIGINAL):
        return
    replacement = point.wrap(original)
    if not hasattr(replacement, points.ORIGINAL):  # the listener of backward has it by its class
        setattr(replacement, points.ORIGINAL, original)
    for path in (point.owner, *point.aliases):
        owner = points.owner_of(path)
        # An alias that holds something else is not ours to replace.
        if getattr(owner, point.attribute, None) is original:
            setattr(owner, point.attribute, replacement)
            _in_torch.add((path, point.attribute))
