"""Alertmanager's webhook body, checked field by field, and its text for people."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

RECEIVERS = ("pager", "tickets")
_NEVER = "0001-01-01T00:00:00Z"  # Go's zero time, by which Alertmanager says "has not ended"
_ANNOTATIONS = ("description", "runbook_url", "dashboard_url")


class WebhookError(ValueError):
    """The body is not what Alertmanager sends; the text names the field."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PagedAlert:
    """One alert of a page; ``ends_at`` is None while it fires."""

    status: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    starts_at: str
    ends_at: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """One notification; ``time`` is when it arrived, RFC 3339."""

    time: str
    receiver: str
    status: str
    group_labels: Mapping[str, str]
    alerts: tuple[PagedAlert, ...]


def _object(value: object, field: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise WebhookError(f"{field} must be an object")
    return value


def _text(fields: Mapping[str, object], field: str) -> str:
    value = fields.get(field)
    if not isinstance(value, str):
        raise WebhookError(f"{field} must be text")
    return value


def _texts(fields: Mapping[str, object], field: str) -> dict[str, str]:
    texts = _object(fields.get(field), field)
    return {name: _text(texts, name) for name in texts}


def _alert(value: object) -> PagedAlert:
    fields = _object(value, "alerts[]")
    ends_at = _text(fields, "endsAt")
    return PagedAlert(
        status=_text(fields, "status"),
        labels=_texts(fields, "labels"),
        annotations=_texts(fields, "annotations"),
        starts_at=_text(fields, "startsAt"),
        ends_at=None if ends_at == _NEVER else ends_at,
    )


def read_webhook(body: bytes, receiver: str, now: datetime) -> Page:
    """The page in a webhook's body.

    Raises:
        WebhookError: the body is not JSON, or a field is missing or of another type.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise WebhookError(f"body is not JSON: {error}") from error
    fields = _object(document, "body")
    alerts = fields.get("alerts")
    if not isinstance(alerts, list):
        raise WebhookError("alerts must be a list")
    return Page(
        time=now.isoformat(timespec="milliseconds"),
        receiver=receiver,
        status=_text(fields, "status"),
        group_labels=_texts(fields, "groupLabels"),
        alerts=tuple(_alert(alert) for alert in alerts),
    )


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)


def describe_alerts(page: Page) -> str:
    """The page as lines of text."""
    word = "PAGE" if page.receiver == "pager" else "TICKET"
    group = " ".join(f"{name}={value}" for name, value in page.group_labels.items())
    lines = [f"{page.time} {word} {page.status} {group}"]
    for alert in page.alerts:
        name = alert.labels.get("alertname", "alert without a name")
        lines.append(f"  {alert.status} {name}: {alert.annotations.get('summary', 'no summary')}")
        notes = (alert.annotations.get(field) for field in _ANNOTATIONS)
        lines += [f"    {note}" for note in notes if note]
    return "\n".join(map(_printable, lines))
