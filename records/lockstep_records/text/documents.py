"""Documents of TOML and JSON: what is too large, too deep or too wide is never decoded.

A few bytes can stand for much time and memory, so a text is measured before a value of it is made.
``yaml_documents`` does so for YAML, whose library only some programs have.
"""

import json
import tomllib
from pathlib import Path
from typing import Any, Never

MAX_BYTES = 1 << 20
"""Of a file that people write."""
MAX_JSON_VALUES = 500_000
"""Of a message of JSON, whose size its reader bounds."""
_MAX_TOML_LINE = 2048  # the time for a dotted key grows with the square of its parts


class DocumentError(ValueError):
    """A document that is not decoded; one sentence without the name of its file."""


def read_document(path: Path, max_bytes: int = MAX_BYTES) -> str:
    """The text of a file; DocumentError where it cannot be read, is longer, or is not UTF-8."""
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
        text = data.decode()
    except OSError as error:
        remedy = "name a file that is there and may be read"
        raise DocumentError(f"it cannot be read: {error.strerror}; {remedy}") from error
    except UnicodeDecodeError as error:
        raise DocumentError("it is not text in UTF-8") from error
    if len(data) > max_bytes:
        raise DocumentError(f"it is longer than {max_bytes:,} bytes")
    return text


def read_toml(path: Path) -> dict[str, Any]:
    """The value of a TOML file; or DocumentError."""
    text = read_document(path, MAX_BYTES >> 4)
    if max(map(len, text.splitlines()), default=0) > _MAX_TOML_LINE:
        raise DocumentError(f"a line is longer than {_MAX_TOML_LINE:,} characters")
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise DocumentError(f"the text is not TOML: {error}") from error


def decode_json(data: bytes | str, max_values: int = MAX_JSON_VALUES) -> Any:
    """The value of a JSON text, of which NaN and infinity are none; or DocumentError."""
    try:
        text = data.decode() if isinstance(data, bytes) else data
        num_values = sum(map(text.count, "[{,"))
        value = _decode(text) if num_values <= max_values else None
    except RecursionError as error:
        raise DocumentError("it is nested too deeply") from error
    except ValueError as error:
        raise DocumentError(f"it is not JSON: {error}") from error
    if num_values > max_values:
        raise DocumentError(f"it holds more than {max_values:,} values")
    return value


def _refuse_constant(name: str) -> Never:
    raise ValueError(f"{name} is not a JSON number")


_decode = json.JSONDecoder(parse_constant=_refuse_constant).decode
