"""Whether a request is admitted: by a user's password or by a bearer token."""

import base64
import binascii
import hashlib
import hmac
import os
import threading
from collections.abc import Mapping
from pathlib import Path

import bcrypt

from lockstep_records.file_access.token_files import read_token_lines

_MAX_REMEMBERED = 100
# Unknown names are checked against this, so that they take as long as known ones.
_NO_USER_HASH = b"$2b$10$" + b"." * 53


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
