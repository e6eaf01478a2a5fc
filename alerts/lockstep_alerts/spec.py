"""Reads slos.yaml into symptoms: what each alert means, when it fires and whom it wakes."""

import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from lockstep_alerts.conditions import CONDITIONS
from lockstep_alerts.conditions.condition import Condition
from lockstep_alerts.entry import Entry, SpecError
from lockstep_alerts.model import Duration

SEVERITIES = ("critical", "warning")
_ALERT = re.compile(r"^[A-Z][A-Za-z0-9]+$")
_FAILURE = re.compile(r"^F[1-9][0-9]*$")
_REQUIRED = ("alert", "failure", "severity", "kind", "deadline", "summary", "description")
_OPTIONAL = ("for", "keep_firing_for")


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
        deadline: from the fault to the notification.
        summary: one line for people, a Prometheus template.
        description: more for people, a Prometheus template.
    """

    alert: str
    failure: str
    severity: str
    condition: Condition
    pending: Duration | None
    keep_firing: Duration | None
    deadline: Duration
    summary: str
    description: str


def read_spec(path: Path) -> tuple[Symptom, ...]:
    """Every symptom of the spec, in its order.

    Raises:
        SpecError: the file cannot be read, or a field of it is unknown, missing or wrong.
    """
    document = _load(path)
    if not isinstance(document, dict) or set(document) != {"symptoms"}:
        raise SpecError(f"{path}: must hold one key, symptoms, and nothing else")
    entries = document["symptoms"]
    if not isinstance(entries, list) or not entries:
        raise SpecError(f"{path}: symptoms {entries!r}: must be a list of alerts")
    symptoms: list[Symptom] = []
    for index, fields in enumerate(entries):
        location = f"{path}: symptoms[{index}]"
        if not isinstance(fields, dict):
            raise SpecError(f"{location} {fields!r}: must be a mapping of fields")
        symptom = _symptom(Entry(location, fields))
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
    symptom = Symptom(
        alert=entry.text("alert", _ALERT),
        failure=entry.text("failure", _FAILURE),
        severity=entry.choice("severity", *SEVERITIES),
        condition=condition.read(entry),
        pending=entry.optional_duration("for"),
        keep_firing=entry.optional_duration("keep_firing_for"),
        deadline=entry.duration("deadline"),
        summary=entry.text("summary"),
        description=entry.text("description"),
    )
    if symptom.pending and symptom.pending.seconds >= symptom.deadline.seconds:
        raise entry.refuse("for", f"must be shorter than the deadline, {symptom.deadline}")
    return symptom
