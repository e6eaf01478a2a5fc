"""Puts the instrumentation points of the table into torch, and takes them out again.

A replacement stays for the life of the process unless it is removed, for somebody may have wrapped
it again; when the monitor goes, it reports to nobody.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from weakref import ref

from lockstep.patches.points import (
    ORIGINAL,
    Group,
    InstrumentationPoint,
    Wrapper,
    find,
    owner_of,
    report_missing,
)
from lockstep.patches.table import REPLACED

log = logging.getLogger("lockstep")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Replacement:
    """An attribute of torch or of an object that Lockstep has replaced.

    Attributes:
        owner: gives the object that holds it; None when that has gone.
        identity: ``id`` of the replacement. The attribute ORIGINAL does not identify it, for
            ``functools.wraps`` copies that to a wrapper of somebody else.
    """

    owner: Callable[[], Any]
    attribute: str
    identity: int


_in_torch: dict[tuple[str, str], _Replacement] = {}
_on_objects: list[_Replacement] = []


def install(group: Group, table: Iterable[InstrumentationPoint] = REPLACED) -> None:
    """Replaces the attributes of one group, each of them once however often this is called.

    A point whose attribute this torch lacks is left out and logged once; the others work.
    """
    missing = []
    for point in table:
        if point.group != group or (point.owner, point.attribute) in _in_torch:
            continue
        original = find(point)
        if original is not None:
            _replace(point, original)
        elif not point.is_optional:
            missing.append(point)
    report_missing(missing)


def install_on(instance: Any, attribute: str, wrap: Wrapper) -> None:
    """Replaces a method of one object of the user; called again, the later replacement holds."""
    current = getattr(instance, attribute)
    # An earlier monitor's replacement is not wrapped: each call would be counted twice.
    original = getattr(current, ORIGINAL, current)
    replacement = wrap(original)
    setattr(replacement, ORIGINAL, original)
    setattr(instance, attribute, replacement)
    # Held weakly: a watched model must go when its owner lets it go.
    _on_objects.append(
        _Replacement(owner=ref(instance), attribute=attribute, identity=id(replacement))
    )


def uninstall() -> None:
    """Puts the original objects back, but where somebody has wrapped ours again since."""
    for key, replacement in list(_in_torch.items()):
        if _restore(replacement):
            del _in_torch[key]
    while _on_objects:
        _restore(_on_objects.pop())


def _replace(point: InstrumentationPoint, original: Any) -> None:
    assert point.wrap is not None
    if hasattr(original, ORIGINAL):
        return
    replacement = point.wrap(original)
    if not hasattr(replacement, ORIGINAL):  # the listener of backward has it by its class
        setattr(replacement, ORIGINAL, original)
    for path in (point.owner, *point.aliases):
        owner = owner_of(path)
        # An alias that holds something else is not ours to replace.
        if getattr(owner, point.attribute, None) is original:
            setattr(owner, point.attribute, replacement)
            _in_torch[path, point.attribute] = _Replacement(
                owner=lambda owner=owner: owner,  # type: ignore[misc]  # bound as a default
                attribute=point.attribute,
                identity=id(replacement),
            )


def _restore(replacement: _Replacement) -> bool:
    """Whether the original is back, or its owner has gone."""
    owner, attribute = replacement.owner(), replacement.attribute
    current = getattr(owner, attribute, None)
    if owner is None or current is None:
        return True
    if id(current) != replacement.identity:
        log.warning("%s was wrapped by somebody else and stays as it is", attribute)
        return False
    original = getattr(current, ORIGINAL)
    if getattr(original, "__self__", None) is owner:
        delattr(owner, attribute)  # a bound method: its class has it
    else:
        setattr(owner, attribute, original)
    return True
