"""Reads slos.yaml into symptoms: what each alert means, when it fires and whom it wakes."""

import math
import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from lockstep_alerts.conditions import CONDITIONS
from lockstep_alerts.conditions.condition import Condition
from lockstep_alerts.entry import Entry, SpecError
from lockstep_alerts.model import Duration, delivery_seconds
from lockstep_catalogue.windows import ScrapeWindows

SEVERITIES = ("critical", "warning")
_ALERT = re.compile(r"^[A-Z][A-Za-z0-9]+$")
_FAILURE = re.compile(r"^F[1-9][0-9]*$")
_REQUIRED = ("alert", "failure", "severity", "kind", "summary", "description")
_OPTIONAL = ("for", "keep_firing_for")
_KEYS = ("scrape_interval", "symptoms")


@dataclass(frozen=True, kw_only=True, slots=True)
class Symptom:
    """One alert.

    Attributes:
        alert: its name, which is also the name of its runbook.
        failure: the failure mode it answers, such as ``F2``.
        severity: ``critical`` wakes somebody, ``warning`` makes a ticket.
        condition: when it fires, with its limits.
        pending: how long the condition must hold; None fires at once.
        keep_firing: how long it fires on after the condition has ended.
        summary: one line for people, a Prometheus template.
        description: more for people, a Prometheus template.
    """

    alert: str
    failure: str
    severity: str
    condition: Condition
    pending: Duration | None
    keep_firing: Duration | None
    summary: str
    description: str

    def deadline_seconds(self, windows: ScrapeWindows) -> int:
        """From the fault to the notification, at the latest.

        The samples that the condition needs, the scrape that takes the last of them, the
        evaluation after it, those that ``for`` asks for, and the delivery.
        """
        every = windows.evaluation_seconds
        pending = self.pending.seconds if self.pending else 0
        looks_seconds = every * math.ceil(pending / every)
        samples_seconds = self.condition.detection_seconds(windows) + windows.scrape_seconds
        return samples_seconds + every + looks_seconds + delivery_seconds(self.severity)


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
    """The alert spec at one scrape interval.

    Attributes:
        windows: what the scrape interval decides.
        symptoms: every alert, in the order of the file.
    """

    windows: ScrapeWindows
    symptoms: tuple[Symptom, ...]


def read_spec(path: Path, scrape_interval: Duration | None = None) -> Spec:
    """The spec of a file.

    Args:
        path: the file.
        scrape_interval: instead of the one that the file declares.

    Raises:
        SpecError: the file cannot be read, or a field of it is unknown, missing or wrong.
    """
    document = _load(path)
    if not isinstance(document, dict) or set(document) != set(_KEYS):
        raise SpecError(f"{path}: must hold the keys {' and '.join(_KEYS)}, and nothing else")
    windows = _windows(path, scrape_interval.text if scrape_interval else document[_KEYS[0]])
    return Spec(windows=windows, symptoms=_symptoms(path, document[_KEYS[1]], windows))


def _windows(path: Path, scrape_interval: object) -> ScrapeWindows:
    location = f"{path}: scrape_interval {scrape_interval!r}"
    if not isinstance(scrape_interval, str):
        raise SpecError(f"{location}: write a duration such as 15s")
    try:
        return ScrapeWindows(Duration(scrape_interval).seconds)
    except ValueError as error:
        raise SpecError(f"{location}: {error}") from error


def _symptoms(path: Path, entries: object, windows: ScrapeWindows) -> tuple[Symptom, ...]:
    if not isinstance(entries, list) or not entries:
        raise SpecError(f"{path}: symptoms {entries!r}: must be a list of alerts")
    symptoms: list[Symptom] = []
    for index, fields in enumerate(entries):
        location = f"{path}: symptoms[{index}]"
        if not isinstance(fields, dict):
            raise SpecError(f"{location} {fields!r}: must be a mapping of fields")
        symptom = _symptom(Entry(location, fields, windows))
        if symptom.alert in {earlier.alert for earlier in symptoms}:
            raise SpecError(f"{location}: alert {symptom.alert!r}: is listed twice; rename one")
        symptoms.append(symptom)
    return tuple(symptoms)


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


def _symptom(entry: Entry) -> Symptom:
    condition = CONDITIONS[entry.choice("kind", *CONDITIONS)]
    entry.check_keys(_REQUIRED + condition.FIELDS, _OPTIONAL)
    return Symptom(
        alert=entry.text("alert", _ALERT),
        failure=entry.text("failure", _FAILURE),
        severity=entry.choice("severity", *SEVERITIES),
        condition=condition.read(entry),
        pending=entry.optional_duration("for"),
        keep_firing=entry.optional_duration("keep_firing_for"),
        summary=entry.text("summary"),
        description=entry.text("description"),
    )
