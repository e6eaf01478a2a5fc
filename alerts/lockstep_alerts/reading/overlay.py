"""Own limits without a copy of the shipped spec: a file that says ``extends: shipped``.

It holds what differs, by the keys of the spec; alerts and objectives are named by ``alert`` and
``slo``. What the shipped spec gains with an upgrade is there.
"""

from pathlib import Path

from lockstep_alerts.reading.entry import Fields, SpecError, nearest

EXTENDS = "extends"
_NAMES = {"alerts": ("alert", "kind"), "objectives": ("slo", "measure")}
"""Lists of the spec: by what an entry is named, and what a new one has as well."""


SECTIONS = ("size", "limits", "objectives", "alerts")
"""Sections of the spec that a deployment file may have as well."""


def extended(
    path: Path, overlay: Fields, base: Fields, only: tuple[str, ...] | None = None
) -> Fields:
    """The base with what the overlay changes; refusals name the overlay's file and line.

    The overlay says ``extends``, unless ``only`` some sections of a file differ. A SpecError names
    a section, an alert or an objective that is not there.
    """
    if only is None and overlay[EXTENDS] != "shipped":
        raise SpecError(f"{path}:{overlay.lines[EXTENDS]}: {EXTENDS}: write shipped")
    for key, value in overlay.items():
        if key == EXTENDS or (only and key not in only):
            continue
        line = f"{path}:{overlay.lines[key]}"
        if key not in base:
            raise SpecError(
                f"{line}: {key}: the spec has no such section; known are {', '.join(base)}"
            )
        if key in _NAMES:
            _change_entries(path, overlay, key, base)
        elif isinstance(value, Fields) and isinstance(base[key], Fields):
            _change(path, value, base[key])
        else:
            _set(path, overlay, key, base)
    return base


def _set(path: Path, overlay: Fields, key: str, base: Fields) -> None:
    base[key], base.lines[key], base.paths[key] = overlay[key], overlay.lines[key], path


def _change(path: Path, overlay: Fields, base: object) -> None:
    assert isinstance(base, Fields)
    for key, value in overlay.items():
        if isinstance(value, Fields) and isinstance(base.get(key), Fields):
            _change(path, value, base[key])
        else:
            _set(path, overlay, key, base)


def _change_entries(path: Path, overlay: Fields, section: str, base: Fields) -> None:
    name, of_new = _NAMES[section]
    changes, location = overlay[section], f"{path}:{overlay.lines[section]}"
    entries = base[section]
    assert isinstance(entries, list)
    by_name = {each[name]: each for each in entries}
    if not isinstance(changes, list):
        raise SpecError(f"{location}: {section}: must be a list of entries with {name}")
    for change in changes:
        if not isinstance(change, Fields) or name not in change:
            line = f"{path}:{change.line}" if isinstance(change, Fields) else location
            raise SpecError(f"{line}: {section}: each entry names what it changes by {name}")
        if (target := by_name.get(change[name])) is not None:
            _change(path, change, target)
        elif of_new in change:
            change.paths |= dict.fromkeys(change, path)
            entries.append(change)
        else:
            named = f"{path}:{change.lines[name]}: {section}: {name} {change[name]!r}"
            guess = nearest(change[name], by_name)
            raise SpecError(f"{named} is not in the shipped spec; {guess}".rstrip("; "))
