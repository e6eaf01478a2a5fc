"""Files of bearer tokens: one a line, with words behind it where the reader knows some."""

import logging
import stat
from dataclasses import dataclass
from pathlib import Path

_log = logging.getLogger(__name__)
_MAX_BYTES = 64 << 10
_MIN_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class TokenLine:
    """One token.

    Attributes:
        number: of its line, from 1 on.
        words: what follows it, such as scope=agent.
    """

    number: int
    token: str
    words: tuple[str, ...] = ()


def read_token_lines(path: Path) -> tuple[TokenLine, ...]:
    """The tokens of a file; lines that begin with # are comments.

    A file that every user may read is read, and logged as a warning.

    Raises:
        ValueError: one sentence on what is wrong with it.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES + 1).decode("ascii")
            is_public = bool(path.stat().st_mode & stat.S_IROTH)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} holds more than ASCII; give one token a line") from error
    if len(text) > _MAX_BYTES:
        raise ValueError(f"{path} is longer than {_MAX_BYTES} bytes; give fewer tokens")
    lines = [
        TokenLine(number, *_split(line))
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not lines or any(len(line.token) < _MIN_CHARACTERS for line in lines):
        raise ValueError(
            f"{path} must hold one token a line, each of {_MIN_CHARACTERS} characters or more"
        )
    if is_public:
        _log.warning("token_file=readable_by_all path=%r remedy='chmod o-r'", str(path))
    return tuple(lines)


def _split(line: str) -> tuple[str, tuple[str, ...]]:
    token, *words = line.split()
    return token, tuple(words)
