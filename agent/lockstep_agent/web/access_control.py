"""Access to a scrape: TLS and client certificates, tokens, users and their passwords."""

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
from pathlib import Path

import bcrypt

from lockstep_agent.web.config import TlsConfig, WebConfig, read_web_config
from lockstep_records.file_access.token_files import read_token_lines

_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
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
