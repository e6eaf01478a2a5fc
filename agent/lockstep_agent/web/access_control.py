"""Access to a scrape: TLS and client certificates, tokens, users and their passwords.

The file of settings: https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md
"""

import base64
import binascii
import hashlib
import hmac
import logging
import os
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Literal

import bcrypt
import msgspec

from lockstep_cli.small_server import RateLimit
from lockstep_records.file_access.token_files import read_token_lines
from lockstep_records.text.yaml_documents import read_yaml

_MAX_COST = 12
"""Of bcrypt, a quarter of a second; each more doubles what a wrong password costs the node."""
Version = Literal["TLS12", "TLS13"]
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_UserName = Annotated[str, msgspec.Meta(pattern="^[^:]+$")]
_Hash = Annotated[str, msgspec.Meta(pattern=r"^\$2[aby]\$(0[4-9]|1[0-2])\$[./A-Za-z0-9]{53}$")]
_Header = Annotated[str, msgspec.Meta(pattern=r"^[ -~]*\Z")]
_REMEDIES = {
    "cert": "give cert_file",
    "key": "give key_file",
    "client_ca": "give client_ca_file",
    "client_allowed_sans": "leave it out and sign clients by a CA of their own",
    "cipher_suites": "leave it out; OpenSSL's own choice is taken",
    "curve_preferences": "leave it out; OpenSSL's own choice is taken",
    "rate_limit": "leave it out; connections are bounded anyway",
    "basic_auth_users": "give names without a colon and hashes of htpasswd -nBC 10, at most 12",
}
"""What to do where a part of the format is refused: some would serve less safely if ignored."""


class TlsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part ``tls_server_config``.

    Attributes:
        client_ca_file: authority of client certificates; None when clients need none.
        min_version: lowest version of TLS, as the format writes it.
    """

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None
    client_auth_type: Literal[
        "NoClientCert", "RequireAndVerifyClientCert", "VerifyClientCertIfGiven"
    ] = "NoClientCert"
    min_version: Version = "TLS12"
    max_version: Version = "TLS13"
    prefer_server_cipher_suites: bool = True

    def __post_init__(self) -> None:
        """Refuses what does not fit together."""
        if (self.client_auth_type != "NoClientCert") != bool(self.client_ca_file):
            raise ValueError(
                f"client_auth_type {self.client_auth_type} and client_ca_file do not fit together;"
                " give RequireAndVerifyClientCert with a client_ca_file, or neither"
            )
        if self.min_version > self.max_version:
            raise ValueError(f"min_version {self.min_version} is above {self.max_version}")

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that the TLS context is built from."""
        return tuple(path for path in (self.cert_file, self.key_file, self.client_ca_file) if path)


class _Headers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True,
               rename=lambda name: "X-XSS-Protection" if name == "x_xss_protection"
               else name.replace("_", "-").title()):  # fmt: skip
    content_security_policy: _Header = ""
    x_frame_options: _Header = ""
    x_content_type_options: _Header = ""
    x_xss_protection: _Header = ""
    strict_transport_security: _Header = ""


class _HttpConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    http2: bool = True  # checked and ignored: this server speaks HTTP/1
    headers: _Headers | None = None


class WebConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One web configuration file; an empty one means no TLS, and every request is admitted.

    Attributes:
        basic_auth_users: bcrypt hash by name.
    """

    tls_server_config: TlsConfig | None = None
    http_server_config: _HttpConfig | None = None
    basic_auth_users: dict[_UserName, _Hash] | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        """Sent with every answer."""
        http = self.http_server_config
        return msgspec.to_builtins(http.headers) if http and http.headers else {}


def read_web_config(path: Path) -> WebConfig:
    """The configuration in a file; the files it names are relative to its folder.

    Raises:
        ValueError: one sentence on what is wrong with it.
    """

    def convert(_: type, name: Any) -> Path:
        if not isinstance(name, str):
            raise ValueError(f"{name!r:.80} is not the name of a file")  # noqa: TRY004  # of the file
        return path.parent / name

    try:
        return msgspec.convert(read_yaml(path) or {}, WebConfig, dec_hook=convert)
    except ValueError as error:
        text = str(error).replace("Object contains", "it has the")
        found = [part for part in _REMEDIES if f"field `{part}`" in text or f".{part}" in text]
        remedy = _REMEDIES[found[0]] if found else "see Prometheus' web configuration"
        raise ValueError(f"{path}: {text}; {remedy}") from error


_MAX_REMEMBERED = 100
_TRIES_PER_SECOND = 0.5
_log = logging.getLogger(__name__)
_POLL_SECONDS = 1.0


def tls_context(config: TlsConfig) -> ssl.SSLContext:
    """The TLS context of a server; a ValueError says which file is wrong."""
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
        is_required = config.client_auth_type == "RequireAndVerifyClientCert"
        context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
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

    A password takes bcrypt up to a quarter of a second. What was right is remembered and waits for
    nobody; what is not known costs its address a try, of which there are few, and two are computed
    at a time: guessing passwords neither uses up the node's processors nor holds up who knows one.

    Args:
        users: bcrypt hash by name.
        tokens: any of them is enough. With neither users nor tokens every request is admitted.
    """

    def __init__(self, users: Mapping[str, str], tokens: tuple[str, ...] = ()) -> None:
        self._users = {name: hashed.encode() for name, hashed in users.items()}
        # An unknown name takes as long as the costliest of the known ones.
        cost = max((hashed[4:6] for hashed in self._users.values()), default=b"10")
        self._no_user_hash = b"$2b$%s$%s" % (cost, b"." * 53)
        self._tokens = tuple(hashlib.sha256(token.encode()).digest() for token in tokens)
        self._secret = os.urandom(32)
        self._remembered: dict[bytes, None] = {}
        self._tries = RateLimit(_TRIES_PER_SECOND)
        self._lock, self._computing = threading.Lock(), threading.Semaphore(2)

    @property
    def is_open(self) -> bool:
        """Whether every request is admitted."""
        return not self._users and not self._tokens

    @property
    def challenge(self) -> str:
        """Value of the header ``WWW-Authenticate`` of a refusal."""
        return 'Basic realm="lockstep"' if self._users else 'Bearer realm="lockstep"'

    def judge(self, authorization: str, client: str = "") -> HTTPStatus:
        """OK, unauthorized, or too many requests of an address whose passwords were wrong."""
        scheme, _, rest = authorization.partition(" ")
        is_admitted = self.is_open
        if scheme.lower() == "basic" and self._users:
            return self._judge_password(rest.strip(), client)
        if scheme.lower() == "bearer":
            is_admitted = self._is_token_right(rest.strip())
        return HTTPStatus.OK if is_admitted else HTTPStatus.UNAUTHORIZED

    def _is_token_right(self, token: str) -> bool:
        digest = hashlib.sha256(token.encode()).digest()
        # A sum compares with all of them, so that the time does not show which one was close.
        return sum(hmac.compare_digest(digest, accepted) for accepted in self._tokens) > 0

    def _judge_password(self, credentials: str, client: str) -> HTTPStatus:
        try:
            name, colon, password = base64.b64decode(credentials, validate=True).partition(b":")
        except (binascii.Error, ValueError):
            return HTTPStatus.UNAUTHORIZED
        # Remembered by a keyed digest, so that the memory holds no password.
        key = hmac.digest(self._secret, credentials.encode(), "sha256")
        with self._lock:
            if key in self._remembered:
                return HTTPStatus.OK
            if self._tries.wait_seconds(client):
                return HTTPStatus.TOO_MANY_REQUESTS
        hashed = self._users.get(name.decode("utf-8", "replace"))
        with self._computing:
            is_right = _matches(password, hashed or self._no_user_hash) and bool(colon and hashed)
        if not is_right:
            return HTTPStatus.UNAUTHORIZED
        with self._lock:
            if len(self._remembered) >= _MAX_REMEMBERED:
                self._remembered.pop(next(iter(self._remembered)))
            self._remembered[key] = None
        return HTTPStatus.OK


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
        tls = config.tls_server_config
        files = (self._web_config, self._tokens, *(tls.files if tls else ()))
        self._files = tuple(path for path in files if path)
        return Rules(
            context=tls_context(tls) if tls else None,
            admission=Admission(config.basic_auth_users or {}, tokens),
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
