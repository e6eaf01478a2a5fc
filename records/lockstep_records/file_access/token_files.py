"""Files of bearer tokens: one a line, with words behind it where the reader knows some."""

import logging
import stat
from dataclasses import dataclass
from pathlib import Path

_log = logging.getLogger(__name__)
_MAX_BYTES = 64 << 10
_MIN_CHARACTERS = 16


class TokenError(ValueError):
    """A file of tokens cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class TokenLine:
    """One token, the number of its line, and the words behind it, such as scope=agent."""

    number: int
    token: str
    words: tuple[str, ...] = ()


def read_token(path: Path) -> str:
    """The first token of a file, read again at each use, for tokens are renewed; or TokenError."""
    return _read(path)[0].token


def read_token_lines(path: Path) -> tuple[TokenLine, ...]:
    """The tokens of a file, without comments, lines that begin with #; or TokenError.

    A file that every user may read is read, and logged as a warning.
    """
    lines = _read(path)
    if path.stat().st_mode & stat.S_IROTH:
        _log.warning("token_file=readable_by_all path=%r remedy='chmod o-r'", str(path))
    return lines


def _read(path: Path) -> tuple[TokenLine, ...]:
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES + 1).decode("ascii")
    except OSError as error:
        raise TokenError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TokenError(f"{path} holds more than ASCII; give one token a line") from error
    if len(text) > _MAX_BYTES:
        raise TokenError(f"{path} is longer than {_MAX_BYTES} bytes; give fewer tokens")
    lines = tuple(
        TokenLine(number, *_split(line))
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.lstrip().startswith("#")
    )
    if not lines or any(len(line.token) < _MIN_CHARACTERS for line in lines):
        raise TokenError(
            f"{path} must hold one token a line, each of {_MIN_CHARACTERS} characters or more"
        )
    return lines


def _split(line: str) -> tuple[str, tuple[str, ...]]:
    token, *words = line.split()
    return token, tuple(words)
