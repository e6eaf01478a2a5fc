"""Access to a scrape: TLS and client certificates, tokens, users and their passwords.

The file of settings: https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md
"""

import base64
import binascii
import hashlib
import hmac
import logging
import os
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bcrypt
import yaml

from lockstep_records.file_access.token_files import read_token_lines

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
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
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
    low = _choice(values, "min_version", tuple(_VERSIONS), 0)
    high = _choice(values, "max_version", tuple(_VERSIONS), -1)
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


_MAX_REMEMBERED = 100
# Unknown names are checked against this, so that they take as long as known ones.
_NO_USER_HASH = b"$2b$10$" + b"." * 53
_log = logging.getLogger(__name__)
_POLL_SECONDS = 1.0


def tls_context(config: TlsConfig) -> ssl.SSLContext:
    """The TLS context of a server.

    Raises:
        ValueError: one sentence on the file that is wrong.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[config.min_version]
    context.maximum_version = _VERSIONS[config.max_version]
    context.set_alpn_protocols(["http/1.1"])
    for path in config.files:
        try:
            with path.open("rb"):
                pass
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    try:
        context.load_cert_chain(config.cert_file, config.key_file, password=_no_password)
    except ssl.SSLError as error:
        raise ValueError(_sentence(config, error)) from error
    if config.client_ca_file is not None:
        try:
            context.load_verify_locations(config.client_ca_file)
        except ssl.SSLError as error:
            raise ValueError(
                f"client_ca_file {config.client_ca_file} holds no certificate"
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED if config.is_client_required else ssl.CERT_OPTIONAL
    return context


def _no_password() -> str:
    """Keys with a password are refused: OpenSSL would ask for it on a terminal."""
    return ""


def _sentence(config: TlsConfig, error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return (
            f"cert_file {config.cert_file} does not match key_file {config.key_file}; "
            "give the key that the certificate was made for"
        )
    return (
        f"cert_file {config.cert_file} and key_file {config.key_file} are not a certificate and "
        f"key in PEM without a password ({error.reason or 'not to be read'})"
    )


class Admission:
    """Judges the header ``Authorization``.

    A password takes bcrypt 50 ms and more, so the last results are remembered and one is computed
    at a time: guessing passwords cannot use up the node's processors.

    Args:
        users: bcrypt hash by name.
        tokens: any of them is enough. With neither users nor tokens every request is admitted.
    """

    def __init__(self, users: Mapping[str, str], tokens: tuple[str, ...] = ()) -> None:
        self._users = {name: hashed.encode() for name, hashed in users.items()}
        self._tokens = tuple(hashlib.sha256(token.encode()).digest() for token in tokens)
        self._secret = os.urandom(32)
        self._remembered: dict[bytes, bool] = {}
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether every request is admitted."""
        return not self._users and not self._tokens

    @property
    def challenge(self) -> str:
        """Value of the header ``WWW-Authenticate`` of a refusal."""
        return 'Basic realm="lockstep"' if self._users else 'Bearer realm="lockstep"'

    def admits(self, authorization: str) -> bool:
        """Whether a request with this header is admitted."""
        if self.is_open:
            return True
        scheme, _, rest = authorization.partition(" ")
        if scheme.lower() == "basic" and self._users:
            return self._is_password_right(rest.strip())
        if scheme.lower() == "bearer":
            return self._is_token_right(rest.strip())
        return False

    def _is_token_right(self, token: str) -> bool:
        digest = hashlib.sha256(token.encode()).digest()
        # A sum compares with all of them, so that the time does not show which one was close.
        return sum(hmac.compare_digest(digest, accepted) for accepted in self._tokens) > 0

    def _is_password_right(self, credentials: str) -> bool:
        try:
            name, colon, password = base64.b64decode(credentials, validate=True).partition(b":")
        except (binascii.Error, ValueError):
            return False
        hashed = self._users.get(name.decode("utf-8", "replace"))
        # Remembered by a keyed digest, so that the memory holds no password.
        key = hmac.digest(self._secret, credentials.encode(), "sha256")
        with self._lock:
            is_right = self._remembered.get(key)
            if is_right is None:
                matches = bool(colon) and _matches(password, hashed or _NO_USER_HASH)
                is_right = matches and hashed is not None
                if len(self._remembered) >= _MAX_REMEMBERED:
                    self._remembered.pop(next(iter(self._remembered)))
                self._remembered[key] = is_right
        return is_right


def _matches(password: bytes, hashed: bytes) -> bool:
    """Whether a password has a hash; only its first 72 bytes count, as in Prometheus' exporters."""
    return b"\0" not in password and bcrypt.checkpw(password[:72], hashed)


def read_tokens(path: Path) -> tuple[str, ...]:
    """The tokens of a file, one a line; lines that begin with # are comments.

    Raises:
        ValueError: one sentence on what is wrong with it.
    """
    lines = read_token_lines(path)
    for line in lines:
        if line.words:
            raise ValueError(f"{path} line {line.number}: give the token alone, without words")
    return tuple(line.token for line in lines)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """Rules of one connection.

    Attributes:
        context: None without TLS.
        admission: judges the credentials of a request.
    """

    context: ssl.SSLContext | None = None
    admission: Admission = field(default_factory=lambda: Admission({}))
    headers: Mapping[str, str] = field(default_factory=dict)


class AccessControl:
    """Keeps the rules up to date: a changed file counts within a second, a broken one is logged.

    Raises:
        ValueError: one sentence on what is wrong with the files.
    """

    def __init__(
        self,
        web_config: Path | None = None,
        tokens: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._web_config, self._tokens, self._clock = web_config, tokens, clock
        self._lock = threading.Lock()
        self._files: tuple[Path, ...] = ()
        self._rules = self._read()
        self._signatures = _signatures(self._files)
        self._next_poll_seconds = clock() + _POLL_SECONDS
        self.is_tls = self._rules.context is not None

    @property
    def has_credentials(self) -> bool:
        """Whether a request needs a user, a token or a client's certificate."""
        context = self._rules.context
        has_certificate = context is not None and context.verify_mode is ssl.CERT_REQUIRED
        return has_certificate or not self._rules.admission.is_open

    def rules(self) -> Rules:
        """The rules of this moment."""
        with self._lock:
            if self._clock() >= self._next_poll_seconds:
                self._next_poll_seconds = self._clock() + _POLL_SECONDS
                self._poll()
            return self._rules

    def _poll(self) -> None:
        if _signatures(self._files) == self._signatures:
            return
        try:
            rules = self._read()
        except ValueError as error:
            _log.error("web=kept reason=%r", str(error))  # the message is enough
            return
        finally:  # after a failure too: a broken file is logged once, not every second
            self._signatures = _signatures(self._files)
        # Scrapers know the address by http or https; it does not change under them.
        if (rules.context is not None) != self.is_tls:
            _log.error("web=kept reason='TLS is switched on or off only at the start'")
            return
        self._rules = rules
        _log.info("web=read_anew")

    def _read(self) -> Rules:
        config = read_web_config(self._web_config) if self._web_config else WebConfig()
        tokens = read_tokens(self._tokens) if self._tokens else ()
        files = (self._web_config, self._tokens, *(config.tls.files if config.tls else ()))
        self._files = tuple(path for path in files if path)
        return Rules(
            context=tls_context(config.tls) if config.tls else None,
            admission=Admission(config.users, tokens),
            headers=config.headers,
        )


def _signatures(files: tuple[Path, ...]) -> tuple[object, ...]:
    """What changes when a file does, or when a link is turned to another file.

    Kubernetes updates a mounted secret by turning such a link.
    """
    return tuple(_signature(path) for path in files)


def _signature(path: Path) -> object:
    try:
        status = path.stat()
    except OSError as error:
        return error.errno
    return status.st_ino, status.st_mtime_ns, status.st_size
