"""Reads slos.yaml and refuses what cannot be meant: one sentence names file, field and remedy."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import yaml

from lockstep_alerts.model import (
    Duration,
    Limits,
    NotFiniteLimits,
    StalledLimits,
    StragglerLimits,
    Symptom,
)

SEVERITIES = ("critical", "warning")
_ALERT = re.compile(r"^[A-Z][A-Za-z0-9]+$")
_FAILURE = re.compile(r"^F[1-9][0-9]*$")
_REQUIRED = ("alert", "failure", "severity", "kind", "deadline", "summary", "description")
_OPTIONAL = ("for", "keep_firing_for")


class SpecError(ValueError):
    """The spec is not what it should be; the text names file, field, value and remedy."""


class _Entry:
    """One entry of the spec, read field by field."""

    def __init__(self, place: str, fields: Mapping[str, object]) -> None:
        self.place = place
        self._fields = fields

    def refuse(self, field: str, remedy: str) -> SpecError:
        return SpecError(f"{self.place}: {field} {self._fields.get(field)!r}: {remedy}")

    def check_keys(self, required: tuple[str, ...], optional: tuple[str, ...]) -> None:
        for field in self._fields:
            if field not in required + optional:
                raise self.refuse(field, f"unknown key; known are {', '.join(required + optional)}")
        for field in required:
            if field not in self._fields:
                raise SpecError(f"{self.place}: {field} is missing; add it")

    def text(self, field: str, pattern: re.Pattern[str] | None = None) -> str:
        value = self._fields.get(field)
        if not isinstance(value, str) or not value.strip():
            raise self.refuse(field, "write text")
        if pattern is not None and not pattern.match(value):
            raise self.refuse(field, f"must match {pattern.pattern}")
        return value.strip()

    def choice(self, field: str, *allowed: str) -> str:
        value = self._fields.get(field)
        if not isinstance(value, str) or value not in allowed:
            raise self.refuse(field, f"must be one of {', '.join(allowed)}")
        return value

    def number(self, field: str, above: float, up_to: float) -> float:
        value = self._fields.get(field)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refuse(field, "write a number")
        if not above < value <= up_to:
            raise self.refuse(field, f"must be above {above:g} and at most {up_to:g}")
        return float(value)

    def duration(self, field: str) -> Duration:
        value = self._fields.get(field)
        if not isinstance(value, str):
            raise self.refuse(field, "write a duration such as 10s")
        try:
            return Duration(value)
        except ValueError as error:
            raise SpecError(f"{self.place}: {field}: {error}") from error

    def optional_duration(self, field: str) -> Duration | None:
        return self.duration(field) if field in self._fields else None


def _straggler(entry: _Entry) -> Limits:
    return StragglerLimits(above_ratio=entry.number("above_ratio", 0, 1))


def _stalled(entry: _Entry) -> Limits:
    return StalledLimits(
        median_steps=entry.number("median_steps", 0, 1000), at_least=entry.duration("at_least")
    )


def _not_finite(entry: _Entry) -> Limits:
    return NotFiniteLimits(window=entry.duration("window"))


_KINDS: Mapping[str, tuple[tuple[str, ...], Callable[[_Entry], Limits]]] = {
    "straggler": (("above_ratio",), _straggler),
    "stalled": (("median_steps", "at_least"), _stalled),
    "not_finite": (("window",), _not_finite),
}


def _symptom(entry: _Entry) -> Symptom:
    kind_fields, read_limits = _KINDS[entry.choice("kind", *_KINDS)]
    entry.check_keys(_REQUIRED + kind_fields, _OPTIONAL)
    symptom = Symptom(
        alert=entry.text("alert", _ALERT),
        failure=entry.text("failure", _FAILURE),
        severity=entry.choice("severity", *SEVERITIES),
        limits=read_limits(entry),
        pending=entry.optional_duration("for"),
        keep_firing=entry.optional_duration("keep_firing_for"),
        deadline=entry.duration("deadline"),
        summary=entry.text("summary"),
        description=entry.text("description"),
    )
    if symptom.pending and symptom.pending.seconds >= symptom.deadline.seconds:
        raise entry.refuse("for", f"must be shorter than the deadline, {symptom.deadline}")
    return symptom


def _load(path: Path) -> object:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(
            f"spec {path} cannot be read: {error.strerror}; name one by --spec"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise SpecError(f"spec {path} is no YAML: {reason}") from error


def read_spec(path: Path) -> tuple[Symptom, ...]:
    """Every symptom of the spec, in its order.

    Raises:
        SpecError: the file cannot be read, or a field of it is unknown, missing or wrong.
    """
    whole = _load(path)
    if not isinstance(whole, dict) or set(whole) != {"symptoms"}:
        raise SpecError(f"{path}: must hold one key, symptoms, and nothing else")
    entries = whole["symptoms"]
    if not isinstance(entries, list) or not entries:
        raise SpecError(f"{path}: symptoms {entries!r}: must be a list of alerts")
    symptoms: list[Symptom] = []
    for position, fields in enumerate(entries):
        place = f"{path}: symptoms[{position}]"
        if not isinstance(fields, dict):
            raise SpecError(f"{place} {fields!r}: must be a mapping of fields")
        symptom = _symptom(_Entry(place, fields))
        if symptom.alert in {known.alert for known in symptoms}:
            raise SpecError(f"{place}: alert {symptom.alert!r}: stands there twice; rename one")
        symptoms.append(symptom)
    return tuple(symptoms)
