"""The settings of a field: its unit, its thresholds, its mappings, and the overrides of them."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lockstep_dashboards.snapshot.board_file import GrafanaPanel
from lockstep_dashboards.snapshot.colors import INK, css_color
from lockstep_dashboards.snapshot.units import value_text

_TEXT_COLORS = {"text", "transparent"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """A value as it is drawn: its text and a CSS colour."""

    text: str
    color: str = INK


@dataclass(frozen=True, slots=True)
class Field:
    """Settings by Grafana's name with dots, such as ``custom.axisPlacement``."""

    settings: Mapping[str, Any]

    @property
    def unit(self) -> str:
        """Grafana's name of the unit."""
        return str(self.settings.get("unit", "short"))

    @property
    def decimals(self) -> int | None:
        """Digits after the point, or None for as many as the value needs."""
        decimals = self.settings.get("decimals")
        return decimals if isinstance(decimals, int) else None

    def number(self, name: str) -> float | None:
        """A setting that is a number, such as ``min``; None where it is not set."""
        value = self.settings.get(name)
        return float(value) if isinstance(value, int | float) else None

    def custom(self, name: str) -> Any:
        """A setting of the view."""
        return self.settings.get(f"custom.{name}")

    def display(self, value: float | str | None) -> Reading:
        """Text and colour of a value: by a mapping, or by its unit and the thresholds."""
        mapped = _mapped(self.settings.get("mappings", ()), value)
        if mapped is not None:
            text = str(mapped.get("text") or _plain(value))
            color = mapped.get("color")
            return Reading(text=text, color=css_color(str(color)) if color else self.color(value))
        if value is None:
            return Reading(text=str(self.settings.get("noValue") or "no data"), color="var(--soft)")
        if isinstance(value, str):
            return Reading(text=value)
        return Reading(text=value_text(value, self.unit, self.decimals), color=self.color(value))

    def color(self, value: float | str | None) -> str:
        """The CSS colour of a value by the thresholds; of ink where they set none."""
        if not isinstance(value, int | float):
            return INK
        mode = self.settings.get("color.mode")
        if mode == "fixed":
            return css_color(str(self.settings.get("color.fixedColor", "")))
        color = "text"
        for step in self.thresholds:
            if step[0] is None or value >= step[0]:
                color = step[1]
        return INK if color in _TEXT_COLORS else css_color(color)

    @property
    def thresholds(self) -> list[tuple[float | None, str]]:
        """From which value on which colour; the first has no lower bound."""
        thresholds = self.settings.get("thresholds") or {}
        low, high = self.number("min") or 0.0, self.number("max")
        steps = []
        for step in thresholds.get("steps", ()):
            value = step.get("value")
            if value is not None and thresholds.get("mode") == "percentage":
                value = low + ((100.0 if high is None else high) - low) * float(value) / 100
            steps.append((None if value is None else float(value), str(step.get("color", "text"))))
        return steps


def field_of(panel: GrafanaPanel, *names: str, ref_id: str = "") -> Field:
    """The settings of the field with one of these names, or of a query's fields."""
    settings = dict(_flat(panel.defaults))
    for override in panel.overrides:
        if _matches(override.get("matcher", {}), names, ref_id):
            for entry in override.get("properties", ()):
                if "value" in entry:
                    settings |= _flat({str(entry["id"]): entry["value"]})
    return Field(settings)


def _flat(settings: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Settings of the view and of colours by their name with dots; others as they are."""
    for name, value in settings.items():
        if name in {"custom", "color"} and isinstance(value, dict):
            yield from ((f"{name}.{part}", setting) for part, setting in value.items())
        else:
            yield name, value


def _matches(matcher: Mapping[str, Any], names: Iterable[str], ref_id: str) -> bool:
    kind, wish = matcher.get("id"), matcher.get("options", "")
    if kind == "byName":
        return wish in names
    if kind == "byFrameRefID":
        return bool(ref_id) and wish == ref_id
    if kind == "byRegexp":
        try:
            pattern = re.compile(str(wish).removeprefix("/").removesuffix("/"))
        except re.error:
            return False
        return any(pattern.search(name) for name in names)
    return False


def _mapped(mappings: Iterable[Mapping[str, Any]], value: float | str | None) -> Any:
    """What the first mapping that fits says of a value: text and colour; None if none fits."""
    for mapping in mappings:
        kind, options = mapping.get("type"), mapping.get("options") or {}
        if kind == "value" and value is not None:
            result = options.get(_plain(value))
            if result is not None:
                return result
        if kind == "range" and isinstance(value, int | float):
            low, high = options.get("from"), options.get("to")
            if (low is None or value >= low) and (high is None or value <= high):
                return options.get("result")
        if kind == "special" and value is None and options.get("match") in {"null", "null+nan"}:
            return options.get("result")
    return None


def _plain(value: float | str | None) -> str:
    """A value as the keys of mappings are written."""
    return f"{value:g}" if isinstance(value, int | float) else str(value)
