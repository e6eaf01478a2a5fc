"""What stands before the server: TLS, who may ask, headers; read anew when a file changes."""

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
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What holds for a connection; ``context`` is None without TLS."""

    context: ssl.SSLContext | None = None
    admission: Admission = field(default_factory=lambda: Admission({}))
    headers: Mapping[str, str] = field(default_factory=dict)


class AccessControl:
    """Keeps the rules; a change of the files holds within a second, a broken one is said once.

    Args:
        web_config: the web configuration file; None for none.
        tokens: the file of bearer tokens; None for none.
        clock: monotonic, in seconds.

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
        self._seen = _signatures(self._files)
        self._next_look_seconds = clock() + _LOOK_SECONDS
        self.is_tls = self._rules.context is not None

    def rules(self) -> Rules:
        """The rules of this moment."""
        with self._lock:
            if self._clock() >= self._next_look_seconds:
                self._next_look_seconds = self._clock() + _LOOK_SECONDS
                self._look()
            return self._rules

    def _look(self) -> None:
        if _signatures(self._files) == self._seen:
            return
        try:
            rules = self._read()
        except ValueError as error:
            _log.error("web=kept reason=%r", str(error))  # the sentence is enough
            return
        finally:
            self._seen = _signatures(self._files)
        if (rules.context is not None) != self.is_tls:
            _log.error("web=kept reason='TLS is switched on or off only at the start'")
            return
        self._rules = rules
        _log.info("web=read_anew")

    def _read(self) -> Rules:
        told = read_web_config(self._web_config) if self._web_config else WebConfig()
        tokens = read_tokens(self._tokens) if self._tokens else ()
        own = (self._web_config, self._tokens, *(told.tls.files if told.tls else ()))
        self._files = tuple(path for path in own if path)
        return Rules(
            context=tls_context(told.tls) if told.tls else None,
            admission=Admission(told.users, tokens),
            headers=told.headers,
        )


def _signatures(files: tuple[Path, ...]) -> tuple[object, ...]:
    """What changes when a file does; a link that is turned to another file changes it too."""
    return tuple(_signature(path) for path in files)


def _signature(path: Path) -> object:
    try:
        told = path.stat()
    except OSError as error:
        return error.errno
    return told.st_ino, told.st_mtime_ns, told.st_size
