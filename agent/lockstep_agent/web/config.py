"""The web configuration file of Prometheus' exporters, read and checked.

The format: https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

_MAX_BYTES = 1 << 20
_BCRYPT = re.compile(r"\$2[aby]\$(0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{53}")
_HEADERS = (
    "Content-Security-Policy",
    "X-Frame-Options",
    "X-Content-Type-Options",
    "X-XSS-Protection",
    "Strict-Transport-Security",
)
_CLIENT_AUTH = ("NoClientCert", "RequireAndVerifyClientCert", "VerifyClientCertIfGiven")
_VERSIONS = ("TLS12", "TLS13")
_PARTS = ("tls_server_config", "http_server_config", "basic_auth_users")
_TLS_KEYS = (
    "cert_file",
    "key_file",
    "client_ca_file",
    "client_auth_type",
    "min_version",
    "max_version",
    "prefer_server_cipher_suites",
)
# Keys of the format that are refused: ignoring one would serve less safely than the file asks.
_NOT_SERVED = {
    "cert": "give cert_file",
    "key": "give key_file",
    "client_ca": "give client_ca_file",
    "client_allowed_sans": "leave it out and sign clients by a CA of their own",
    "cipher_suites": "leave it out; OpenSSL's own choice is taken",
    "curve_preferences": "leave it out; OpenSSL's own choice is taken",
    "rate_limit": "leave it out; connections are bounded anyway",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class TlsConfig:
    """The part ``tls_server_config``.

    Attributes:
        client_ca_file: authority of client certificates; None when clients need none.
        is_client_required: whether a client without a certificate is refused.
        min_version: lowest version of TLS, as the format writes it.
    """

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None
    is_client_required: bool = False
    min_version: str = "TLS12"
    max_version: str = "TLS13"

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that the TLS context is built from."""
        return tuple(path for path in (self.cert_file, self.key_file, self.client_ca_file) if path)


@dataclass(frozen=True, kw_only=True, slots=True)
class WebConfig:
    """One web configuration file; an empty one means no TLS, and every request is admitted.

    Attributes:
        users: bcrypt hash by name.
        headers: sent with every answer.
    """

    tls: TlsConfig | None = None
    users: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


def read_web_config(path: Path) -> WebConfig:
    """The configuration in a file; the files it names are relative to its folder.

    Raises:
        ValueError: one sentence on what is wrong with it.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    if len(text) > _MAX_BYTES:
        raise ValueError(f"{path} is longer than {_MAX_BYTES} bytes; give a web configuration")
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        problem = getattr(error, "problem_mark", None)
        position = f" in line {problem.line + 1}" if problem else ""
        raise ValueError(f"{path} is not YAML{position}") from error
    try:
        return _config({} if document is None else document, path.parent)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _config(document: Any, folder: Path) -> WebConfig:
    parts = _mapping(document, "the file", _PARTS)
    http = _mapping(parts.get("http_server_config"), "http_server_config", ("http2", "headers"))
    _flag(http, "http2")  # checked and ignored: this server speaks HTTP/1
    tls = parts.get("tls_server_config")
    return WebConfig(
        tls=None if tls is None else _tls(tls, folder),
        users=_users(parts.get("basic_auth_users")),
        headers=_headers(http.get("headers")),
    )


def _tls(section: Any, folder: Path) -> TlsConfig | None:
    values = _mapping(section, "tls_server_config", _TLS_KEYS)
    _flag(values, "prefer_server_cipher_suites")
    files = {
        key: folder / _text(values, key)
        for key in ("cert_file", "key_file", "client_ca_file")
        if key in values
    }
    for key, other in (("cert_file", "key_file"), ("key_file", "cert_file")):
        if key not in files:
            problem = (
                f"{other} needs {key}" if other in files else "cert_file and key_file are missing"
            )
            raise ValueError(f"tls_server_config: {problem}; give both")
    client = _choice(values, "client_auth_type", _CLIENT_AUTH)
    if (client != _CLIENT_AUTH[0]) != ("client_ca_file" in files):
        raise ValueError(
            f"tls_server_config: client_auth_type {client} and client_ca_file do not fit together; "
            "give RequireAndVerifyClientCert with a client_ca_file, or neither"
        )
    low = _choice(values, "min_version", _VERSIONS, 0)
    high = _choice(values, "max_version", _VERSIONS, -1)
    if low > high:
        raise ValueError(f"tls_server_config: min_version {low} is above max_version {high}")
    return TlsConfig(
        cert_file=files["cert_file"],
        key_file=files["key_file"],
        client_ca_file=files.get("client_ca_file"),
        is_client_required=client == "RequireAndVerifyClientCert",
        min_version=low,
        max_version=high,
    )


def _users(section: Any) -> dict[str, str]:
    users = _mapping(section, "basic_auth_users")
    for name, hashed in users.items():
        if not name or ":" in name:
            raise ValueError(
                f"basic_auth_users: {name!r} is not a user name; give one without a colon"
            )
        if not isinstance(hashed, str) or not _BCRYPT.fullmatch(hashed):
            raise ValueError(
                f"basic_auth_users: the value of {name!r} is not a bcrypt hash; create one with "
                "htpasswd -nBC 10"
            )
    return users


def _headers(section: Any) -> dict[str, str]:
    headers = _mapping(section, "headers", _HEADERS)
    for name in headers:
        value = _text(headers, name)
        if not value.isascii() or not value.isprintable():
            raise ValueError(f"headers: {name} {value!r} cannot be sent; give printable ASCII")
    return {name: value for name, value in headers.items() if value}


def _mapping(section: Any, name: str, keys: tuple[str, ...] = ()) -> dict[str, Any]:
    """A section with keys that are all known; any keys where none are given."""
    if section is None:
        return {}
    if not isinstance(section, dict) or not all(isinstance(key, str) for key in section):
        raise ValueError(f"{name} holds {type(section).__name__}; give keys and values")
    for key in section:
        if keys and key in _NOT_SERVED and key not in keys:
            raise ValueError(f"{key!r} is not served by this agent; {_NOT_SERVED[key]}")
        if keys and key not in keys:
            raise ValueError(f"{name} has the unknown key {key!r}; known are {', '.join(keys)}")
    return section


def _text(values: Mapping[str, Any], key: str) -> str:
    value = values[key]
    if not isinstance(value, str):
        raise ValueError(f"{key} {value!r} is not text")  # noqa: TRY004  # a value of the file
    return value


def _flag(values: Mapping[str, Any], key: str) -> None:
    if not isinstance(values.get(key, True), bool):
        raise ValueError(f"{key} {values[key]!r} is neither true nor false")  # noqa: TRY004  # the same


def _choice(values: Mapping[str, Any], key: str, choices: tuple[str, ...], default: int = 0) -> str:
    value = values.get(key, choices[default])
    if value not in choices:
        raise ValueError(f"{key} {value!r} is not served; give one of {', '.join(choices)}")
    return str(value)
