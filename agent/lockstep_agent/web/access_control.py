"""Access to the server: TLS, users and tokens, headers; reloaded when a file changes."""

import logging
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lockstep_agent.web.admission import Admission, read_tokens
from lockstep_agent.web.config import WebConfig, read_web_config
from lockstep_agent.web.tls import tls_context

_log = logging.getLogger(__name__)
_POLL_SECONDS = 1.0


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
