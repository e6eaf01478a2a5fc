"""Alertmanager's webhook body, checked against its types, and its text for people."""

from collections.abc import Mapping
from datetime import datetime

import msgspec

RECEIVERS = ("pager", "tickets")
_NEVER = "0001-01-01T00:00:00Z"  # Go's zero time, by which Alertmanager says "has not ended"
_ANNOTATIONS = ("description", "runbook_url", "dashboard_url")


class WebhookError(ValueError):
    """The body is not what Alertmanager sends; the text names the field."""


class PagedAlert(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One alert of a page; ``ends_at`` is None while it fires."""

    status: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    starts_at: str
    ends_at: str | None


class _Body(msgspec.Struct, rename="camel"):
    """What Alertmanager sends."""

    status: str
    group_labels: dict[str, str]
    alerts: tuple[PagedAlert, ...]


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One notification; ``time`` is when it arrived, RFC 3339."""

    time: str
    receiver: str
    status: str
    group_labels: Mapping[str, str]
    alerts: tuple[PagedAlert, ...]


def read_webhook(body: bytes, receiver: str, now: datetime) -> Page:
    """The page in a webhook's body.

    Raises:
        WebhookError: the body is not JSON, or a field is missing or of another type.
    """
    try:
        sent = msgspec.json.decode(body, type=_Body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise WebhookError(f"body is not what Alertmanager sends: {error}") from error
    return Page(
        time=now.isoformat(timespec="milliseconds"),
        receiver=receiver,
        status=sent.status,
        group_labels=sent.group_labels,
        alerts=tuple(
            msgspec.structs.replace(alert, ends_at=None) if alert.ends_at == _NEVER else alert
            for alert in sent.alerts
        ),
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
