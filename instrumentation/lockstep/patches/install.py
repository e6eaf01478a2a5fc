"""Puts the instrumentation points of the table into torch.

A replacement stays for the life of the process, for somebody may have wrapped it again; when the
monitor goes, it reports to nobody.
"""

import sys
from collections.abc import Iterable, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, ClassVar

from lockstep.guard import outcome_of
from lockstep.patches import points
from lockstep.patches.table import REPLACED

_in_torch: set[tuple[str, str]] = set()
"""Owner and attribute of each replacement."""


def install(group: points.Group, table: Iterable[points.InstrumentationPoint] = REPLACED) -> None:
    """Replaces the attributes of one group, each of them once however often this is called.

    A function is replaced in every module that holds it, by whatever name it was imported. A point
    whose attribute this torch lacks is left out and logged once; the others work.
    """
    missing, functions = [], dict[int, Any]()
    for point in table:
        if point.group != group or (point.owner, point.attribute) in _in_torch:
            continue
        if point.is_optional and point.owner.partition(":")[0] not in sys.modules:
            _LateModules.groups[point.owner] = group
            continue
        original = points.find(point)
        if original is None:
            missing += [] if point.is_optional else [point]
        elif not hasattr(original, points.ORIGINAL):
            replacement = _replace(point, original)
            if isinstance(points.owner_of(point.owner), ModuleType):
                functions[id(original)] = replacement
    rebind(functions)
    points.report_missing(missing)


def rebind(functions: Mapping[int, Any]) -> None:
    """Replaces objects, by id, under every name by which others' modules hold them."""
    for name, module in [*sys.modules.items()] if functions else ():
        # By its type: what stands in for a module may say that it is one.
        if issubclass(type(module), ModuleType) and not name.startswith("lockstep."):
            names = ModuleType.__getattribute__(module, "__dict__")  # a lazy module's own may load
            held = [key for key, value in [*names.items()] if id(value) in functions]
            names.update({key: functions[id(names[key])] for key in held})


class _LateModules:
    """A finder of modules: what is optional is replaced as soon as its module is loaded."""

    groups: ClassVar[dict[str, points.Group]] = {}

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The module as it is found otherwise, with the replacement after its execution."""
        group = cls.groups.pop(name, None)
        spec = PathFinder.find_spec(name, path, target) if group else None
        if group is None or spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            outcome_of(install, group)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # of this one loader
        return spec


sys.meta_path.insert(0, _LateModules)


def install_on(instance: Any, attribute: str, wrap: points.Wrapper) -> None:
    """Replaces a method of one object of the user; called again, the later replacement holds."""
    current = getattr(instance, attribute)
    # An earlier monitor's replacement is not wrapped: each call would be counted twice.
    original = getattr(current, points.ORIGINAL, current)
    replacement = wrap(original)
    setattr(replacement, points.ORIGINAL, original)
    setattr(instance, attribute, replacement)


def _replace(point: points.InstrumentationPoint, original: Any) -> Any:
    """Replaces the attribute itself; returns the replacement."""
    assert point.wrap is not None
    replacement = point.wrap(original)
    if not hasattr(replacement, points.ORIGINAL):  # the listener of backward has it by its class
        setattr(replacement, points.ORIGINAL, original)
    setattr(points.owner_of(point.owner), point.attribute, replacement)
    _in_torch.add((point.owner, point.attribute))
    return replacement
