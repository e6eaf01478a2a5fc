"""Who can be notified: each kind of receiver with its fields, and what Alertmanager is given."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from lockstep_alerts.reading.yaml_lines import Located
from lockstep_records.shared.options import read_address

_SUMMARIES = "{{ range .Alerts }}{{ .Annotations.summary }}. {{ end }}"
_TITLE = "{{ .Status }} {{ range .GroupLabels.SortedPairs }}{{ .Name }}={{ .Value }} {{ end }}"
_TEXT = (
    "{{ range .Alerts }}*{{ .Labels.alertname }}* {{ .Annotations.description }}\n"
    "{{ .Annotations.runbook_url }} {{ .Annotations.dashboard_url }}\n{{ end }}"
)
_MAIL = re.compile(r"[^@\s,]+@[^@\s,]+")

Settings = Mapping[str, str]
Content = dict[str, object]


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """What a receiver is for: the severity and priority it passes on."""

    severity: str
    priority: str


USES = {
    "page": Use(severity="critical", priority="P1"),
    "ticket": Use(severity="warning", priority="P3"),
    "owners": Use(severity="warning", priority="P3"),
    "watchdog": Use(severity="info", priority="P5"),
}


def _pagerduty(settings: Settings, use: Use) -> Content:
    return {**settings, "description": _SUMMARIES, "severity": use.severity}


def _opsgenie(settings: Settings, use: Use) -> Content:
    return {**settings, "message": _SUMMARIES, "description": _TEXT, "priority": use.priority}


def _slack(settings: Settings, use: Use) -> Content:
    del use
    return {**settings, "title": _TITLE, "text": _TEXT}


def _email(settings: Settings, use: Use) -> Content:
    del use
    return {**settings, "headers": {"Subject": f"{_TITLE}{_SUMMARIES}"}}


def _webhook(settings: Settings, use: Use) -> Content:
    del use
    content: Content = {name: text for name, text in settings.items() if name != "token_file"}
    if token_file := settings.get("token_file"):
        content["http_config"] = {"authorization": {"credentials_file": token_file}}
    return content


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """One kind of receiver.

    Attributes:
        key: the list of Alertmanager's configuration that it stands in.
        required: fields that must be there; names that end in ``_file`` are secrets.
        optional: fields that may be.
        content: the entry of Alertmanager's list.
        alternatives: of these fields exactly one must be there.
        newer: fields that need a newer Alertmanager than 0.25, with its version.
    """

    key: str
    required: tuple[str, ...]
    content: Callable[[Settings, Use], Content]
    optional: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()
    newer: Mapping[str, tuple[int, int]]


KINDS = {
    "pagerduty": Kind(
        key="pagerduty_configs",
        required=("routing_key_file",),
        optional=("url",),
        content=_pagerduty,
        newer={},
    ),
    "opsgenie": Kind(
        key="opsgenie_configs",
        required=("api_key_file",),
        optional=("api_url",),
        content=_opsgenie,
        newer={},
    ),
    "slack": Kind(
        key="slack_configs",
        required=("api_url_file", "channel"),
        content=_slack,
        newer={},
    ),
    "email": Kind(
        key="email_configs",
        required=("to", "from", "smarthost", "auth_username", "auth_password_file"),
        content=_email,
        newer={},
    ),
    "webhook": Kind(
        key="webhook_configs",
        required=(),
        optional=("token_file",),
        alternatives=("url", "url_file"),
        content=_webhook,
        newer={"url_file": (0, 26)},
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Receiver:
    """One way to reach somebody: its kind and the fields of the deployment file."""

    kind: str
    settings: Settings

    def entry(self, use: str) -> Content:
        """The entry of Alertmanager's list of this kind; ``use`` is page, ticket or watchdog."""
        resolved = {"send_resolved": use != "watchdog"}
        return {**KINDS[self.kind].content(self.settings, USES[use]), **resolved}


@dataclass(frozen=True, kw_only=True, slots=True)
class SecretPolicy:
    """Where the files of secrets are: here, so that they are looked for, or elsewhere."""

    folder: Path
    are_here: bool
    version: tuple[int, int]


def read_receiver(entry: Located, policy: SecretPolicy) -> Receiver:
    """The receiver of ``- KIND: {FIELD: VALUE}``.

    Raises:
        SpecError: an unknown kind, a field that is missing, unknown or wrong, or a secret without
            its file.
    """
    fields = entry.fields("receiver", (), tuple(KINDS))
    if len(fields) != 1:
        raise entry.refuse("receiver", f"name one kind for each dash: {', '.join(KINDS)}")
    [(name, body)] = fields.items()
    kind = KINDS[name]
    _refuse_inline_secrets(body, kind)
    settings = body.fields(name, kind.required, kind.optional + kind.alternatives)
    alternatives = [field for field in kind.alternatives if field in settings]
    if kind.alternatives and len(alternatives) != 1:
        raise body.refuse(name, f"write one of {' and '.join(kind.alternatives)}")
    for field, value in settings.items():
        _check(field, value, policy)
        if (needed := kind.newer.get(field, policy.version)) > policy.version:
            version = ".".join(map(str, needed))
            raise value.refuse(field, f'needs alertmanager: "{version}", if that is what runs')
    return Receiver(
        kind=name, settings={field: _text(field, each, policy) for field, each in settings.items()}
    )


def _text(field: str, value: Located, policy: SecretPolicy) -> str:
    # Alertmanager reads a relative path from its own folder, which is another.
    text = value.text(field)
    return str(policy.folder / text) if field.endswith("_file") else text


def _refuse_inline_secrets(body: Located, kind: Kind) -> None:
    files = {field for field in kind.required + kind.optional if field.endswith("_file")}
    value = body.value
    for field in value if isinstance(value, dict) else ():
        if f"{field}_file" in files:
            # The value is a secret: it is not repeated on a terminal.
            raise body.refuse_hidden(str(field), f"secrets are read from files; write {field}_file")


def _check(field: str, value: Located, policy: SecretPolicy) -> None:
    text = value.text(field)
    if field.endswith("_file"):
        _check_secret(field, value, policy)
    elif field in ("url", "api_url"):
        address = urlsplit(text)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise value.refuse(field, "write an address such as https://host/path")
        if address.username or address.query:
            raise value.refuse_hidden(field, "holds a secret; put it into a file, by url_file")
    elif field == "smarthost":
        try:
            read_address(text)
        except ValueError as error:
            raise value.refuse(field, str(error)) from error
    elif field in ("to", "from") and not all(map(_MAIL.fullmatch, text.split(", "))):
        raise value.refuse(field, "write an address such as team@example.org")


def _check_secret(field: str, value: Located, policy: SecretPolicy) -> None:
    path = policy.folder / value.text(field)
    if not policy.are_here:
        if not Path(value.text(field)).is_absolute():
            raise value.refuse(field, "is elsewhere: write the whole path, from / on")
        return
    try:
        is_empty = not path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not text"
        raise value.refuse(
            field,
            f"cannot be read ({reason}); put the secret there, or write secrets: elsewhere where "
            "only Alertmanager's machine has it",
        ) from error
    if is_empty:
        raise value.refuse(field, "is empty; put the secret into it")
