"""Whether a request may be answered: by a user's password, or by a bearer token."""

import base64
import binascii
import hashlib
import hmac
import os
import threading
from collections.abc import Mapping
from pathlib import Path

import bcrypt

_MOST_REMEMBERED = 100
_MOST_TOKEN_BYTES = 64 << 10
_SHORTEST_TOKEN = 16
_NOBODY = b"$2b$10$" + b"." * 53  # so that unknown names take as long as known ones


class Admission:
    """Judges the header ``Authorization``.

    A password takes bcrypt 50 ms and more, so the answers to the last ones are remembered, and one
    is computed at a time: who guesses cannot take the node's processors.

    Args:
        users: bcrypt hash by name.
        tokens: any of which is enough. With neither users nor tokens everybody may.
    """

    def __init__(self, users: Mapping[str, str], tokens: tuple[str, ...] = ()) -> None:
        self._users = {name: hashed.encode() for name, hashed in users.items()}
        self._tokens = tuple(hashlib.sha256(token.encode()).digest() for token in tokens)
        self._secret = os.urandom(32)
        self._remembered: dict[bytes, bool] = {}
        self._one_at_a_time = threading.Lock()

    @property
    def asks(self) -> str:
        """The header ``WWW-Authenticate`` of a refusal."""
        return 'Basic realm="lockstep"' if self._users else 'Bearer realm="lockstep"'

    def admits(self, authorization: str) -> bool:
        """Whether the header is enough."""
        if not self._users and not self._tokens:
            return True
        scheme, _, rest = authorization.partition(" ")
        if scheme.lower() == "basic" and self._users:
            return self._knows_password(rest.strip())
        if scheme.lower() == "bearer":
            return self._knows_token(rest.strip())
        return False

    def _knows_token(self, token: str) -> bool:
        told = hashlib.sha256(token.encode()).digest()
        return sum(hmac.compare_digest(told, known) for known in self._tokens) > 0

    def _knows_password(self, told: str) -> bool:
        try:
            name, colon, password = base64.b64decode(told, validate=True).partition(b":")
        except (binascii.Error, ValueError):
            return False
        hashed = self._users.get(name.decode("utf-8", "replace"))
        key = hmac.digest(self._secret, told.encode(), "sha256")
        with self._one_at_a_time:
            known = self._remembered.get(key)
            if known is None:
                known = bool(colon) and _matches(password, hashed or _NOBODY) and hashed is not None
                if len(self._remembered) >= _MOST_REMEMBERED:
                    self._remembered.pop(next(iter(self._remembered)))
                self._remembered[key] = known
        return known


def _matches(password: bytes, hashed: bytes) -> bool:
    """As the Go programs do it: of a password only 72 bytes count."""
    return b"\0" not in password and bcrypt.checkpw(password[:72], hashed)


def read_tokens(path: Path) -> tuple[str, ...]:
    """The tokens of a file, one a line; lines that begin with # are not.

    Raises:
        ValueError: one sentence on what is wrong with it.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_TOKEN_BYTES + 1).decode("ascii")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} holds more than ASCII; give one token a line") from error
    if len(text) > _MOST_TOKEN_BYTES:
        raise ValueError(f"{path} is longer than {_MOST_TOKEN_BYTES} bytes")
    lines = [line.strip() for line in text.splitlines()]
    tokens = tuple(line for line in lines if line and not line.startswith("#"))
    if not tokens or any(len(token) < _SHORTEST_TOKEN for token in tokens):
        raise ValueError(
            f"{path} must hold one token a line, each of {_SHORTEST_TOKEN} characters or more"
        )
    return tokens
