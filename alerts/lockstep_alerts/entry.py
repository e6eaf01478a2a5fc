"""One entry of slos.yaml, read field by field; what cannot be meant is refused in one sentence."""

import re
from collections.abc import Mapping

from lockstep_alerts.model import Duration
from lockstep_catalogue.windows import MIN_SCRAPES, ScrapeWindows

_SCRAPES = re.compile(r"([1-9][0-9]{0,2}) scrapes?")


class SpecError(ValueError):
    """The spec is not what it should be; the text names file, field, value and remedy."""


class Entry:
    """Checked access to the fields of an entry.

    Args:
        location: file and position, with which each refusal begins.
        fields: as YAML gave them.
        windows: what the spec's scrape interval decides.
    """

    def __init__(self, location: str, fields: Mapping[str, object], windows: ScrapeWindows) -> None:
        self.location = location
        self.windows = windows
        self._fields = fields

    def refuse(self, field: str, remedy: str) -> SpecError:
        """The error for a field; the caller raises it."""
        return SpecError(f"{self.location}: {field} {self._fields.get(field)!r}: {remedy}")

    def check_keys(self, required: tuple[str, ...], optional: tuple[str, ...]) -> None:
        """Refuses a field that is not listed, and a required one that is missing."""
        for field in self._fields:
            if field not in required + optional:
                raise self.refuse(field, f"unknown key; known are {', '.join(required + optional)}")
        for field in required:
            if field not in self._fields:
                raise SpecError(f"{self.location}: {field} is missing; add it")

    def text(self, field: str, pattern: re.Pattern[str] | None = None) -> str:
        """Text that is not blank and matches the pattern."""
        value = self._fields.get(field)
        if not isinstance(value, str) or not value.strip():
            raise self.refuse(field, "write text")
        if pattern is not None and not pattern.match(value):
            raise self.refuse(field, f"must match {pattern.pattern}")
        return value.strip()

    def optional_text(self, field: str, pattern: re.Pattern[str]) -> str | None:
        """The same; None where the field is left out."""
        return self.text(field, pattern) if field in self._fields else None

    def choice(self, field: str, *allowed: str) -> str:
        """One of the allowed words."""
        value = self._fields.get(field)
        if not isinstance(value, str) or value not in allowed:
            raise self.refuse(field, f"must be one of {', '.join(allowed)}")
        return value

    def number(self, field: str, above: float, up_to: float) -> float:
        """A number greater than ``above`` and at most ``up_to``."""
        value = self._fields.get(field)
        # YAML's true is an int in Python.
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refuse(field, "write a number")
        if not above < value <= up_to:
            raise self.refuse(field, f"must be above {above:g} and at most {up_to:g}")
        return float(value)

    def duration(self, field: str) -> Duration:
        """A duration such as ``10s`` or ``2 scrapes``."""
        value = self._fields.get(field)
        if not isinstance(value, str):
            raise self.refuse(field, "write a duration such as 10s or 2 scrapes")
        if scrapes := _SCRAPES.fullmatch(value):
            return Duration(f"{int(scrapes[1]) * self.windows.scrape_seconds}s")
        try:
            return Duration(value)
        except ValueError as error:
            raise SpecError(f"{self.location}: {field}: {error}") from error

    def optional_duration(self, field: str, *, at_least_scrapes: int = 1) -> Duration | None:
        """The same, of so many scrapes at least; None where the field is left out."""
        return self._span(field, at_least_scrapes) if field in self._fields else None

    def window(self, field: str) -> Duration:
        """A duration over which samples are compared: four scrapes at least."""
        return self._span(field, MIN_SCRAPES)

    def _span(self, field: str, at_least_scrapes: int) -> Duration:
        duration = self.duration(field)
        least_seconds = at_least_scrapes * self.windows.scrape_seconds
        if duration.seconds < least_seconds:
            raise self.refuse(
                field,
                f"holds fewer than {at_least_scrapes} scrapes, one every "
                f"{self.windows.scrape_seconds}s; write {least_seconds}s or more, "
                "or shorten scrape_interval",
            )
        return duration
