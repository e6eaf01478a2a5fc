"""The last words of a rank, beside its page: the end of its stderr, and the error that ended it.

``rank-00003.stderr`` is a ring of fixed size, so that no output can fill the tmpfs: 8 bytes
``LKSTERR1``, the number of bytes written so far (64 bit, little-endian), then byte n of the output
at 16 + n mod 65,536. ``rank-00003.error.json`` is one JSON object. Secrets are masked in both.
"""

import json
import struct
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lockstep_records.file_access.foreign_files import read_foreign
from lockstep_records.files.rank_files import read_object, write_rank_file
from lockstep_records.page.writer import create_mapping
from lockstep_records.text.secret_patterns import mask_secrets

OUTPUT_SUFFIX, ERROR_SUFFIX = ".stderr", ".error.json"
MAX_OUTPUT_BYTES = 64 << 10
MAX_TRACEBACK_CHARACTERS = 16_384
_MAX_MESSAGE_CHARACTERS = 2048
_MASKED_CHARACTERS = 4 * MAX_TRACEBACK_CHARACTERS
_MAGIC = b"LKSTERR1"
_HEADER = struct.Struct("<8sQ")
_MAX_ERROR_BYTES = 256 << 10
SOURCES = ("except_hook", "torchrun")


class OutputRing:
    """The end of a rank's output, in a file that has its space at creation; or NoPageError."""

    def __init__(self, page: Path) -> None:
        path = page.with_suffix(OUTPUT_SUFFIX)
        self._file = create_mapping(path, _HEADER.size + MAX_OUTPUT_BYTES)
        self._total = 0
        self._file[: _HEADER.size] = _HEADER.pack(_MAGIC, 0)

    def write(self, data: bytes) -> None:
        """Adds output; only the last 64 KiB stay."""
        begin = self._total + max(0, len(data) - MAX_OUTPUT_BYTES)
        tail = data[-MAX_OUTPUT_BYTES:]
        at = begin % MAX_OUTPUT_BYTES
        first = tail[: MAX_OUTPUT_BYTES - at]
        rest = tail[len(first) :]
        self._file[_HEADER.size + at : _HEADER.size + at + len(first)] = first
        self._file[_HEADER.size : _HEADER.size + len(rest)] = rest
        self._total += len(data)
        # After the bytes that it counts: a reader meets old output or new, and nothing else.
        self._file[: _HEADER.size] = _HEADER.pack(_MAGIC, self._total)

    def close(self) -> None:
        """Releases the mapping; the file stays."""
        self._file.close()


def read_output(page: Path) -> str | None:
    """The last output of a rank, at most 64 KiB; None where none is kept."""
    try:
        data = read_foreign(page.with_suffix(OUTPUT_SUFFIX), _HEADER.size + MAX_OUTPUT_BYTES)
    except OSError:
        return None
    return unpack_output(data)


def unpack_output(data: bytes) -> str | None:
    """The text in the bytes of a ring; None where they are none."""
    if len(data) != _HEADER.size + MAX_OUTPUT_BYTES or not data.startswith(_MAGIC):
        return None
    _, total = _HEADER.unpack_from(data)
    ring = data[_HEADER.size :]
    if total <= MAX_OUTPUT_BYTES:
        return ring[:total].decode(errors="replace")
    at = total % MAX_OUTPUT_BYTES
    text = (ring[at:] + ring[:at]).decode(errors="replace")
    return text.partition("\n")[2] or text  # the first line has lost its begin


@dataclass(frozen=True, kw_only=True, slots=True)
class RankError:
    """The error that ended a rank.

    Attributes:
        source: one of ``SOURCES``: the hook that ``attach`` sets, or the error file of torchrun.
        time: seconds since 1970.
    """

    source: str
    type: str
    message: str
    file: str | None = None
    line: int | None = None
    function: str | None = None
    traceback: str = ""
    time: float | None = None

    def __str__(self) -> str:
        """One line for people: the exception and its place."""
        text = f"{self.type}: {self.message}" if self.type else self.message
        first_line = text.partition("\n")[0]
        source = f" ({self.file}:{self.line}, in {self.function})" if self.file else ""
        return first_line + source


def write_error(page: Path, error: RankError) -> Path:
    """Writes the error beside a page, secrets masked and long texts shortened; or OSError."""
    fields = asdict(error) | {
        # Masked before they are shortened: a secret's begin shows what its end is.
        "message": mask_secrets(error.message[:_MASKED_CHARACTERS])[:_MAX_MESSAGE_CHARACTERS],
        "traceback": mask_secrets(error.traceback[-_MASKED_CHARACTERS:])[
            -MAX_TRACEBACK_CHARACTERS:
        ],
    }
    return write_rank_file(page, ERROR_SUFFIX, json.dumps({"version": 1, **fields}).encode())


def read_error(page: Path) -> RankError | None:
    """The error beside a page; None where there is none, or the file is not one of ours."""
    entry = read_object(page.with_suffix(ERROR_SUFFIX), _MAX_ERROR_BYTES) or {}
    if entry.get("version") != 1 or entry.get("source") not in SOURCES:
        return None
    return RankError(
        source=entry["source"],
        type=_text(entry, "type"),
        message=_text(entry, "message"),
        file=_text(entry, "file") or None,
        line=_integer(entry, "line"),
        function=_text(entry, "function") or None,
        traceback=_text(entry, "traceback"),
        time=_number(entry, "time"),
    )


def read_torchrun_error(path: Path) -> RankError | None:
    """The error that torchrun's ``record`` wrote to TORCHELASTIC_ERROR_FILE; None without any."""
    message = (read_object(path, _MAX_ERROR_BYTES) or {}).get("message")
    if isinstance(message, str):
        return RankError(source="torchrun", type="", message=message)
    if not isinstance(message, dict) or not isinstance(message.get("message"), str):
        return None
    extra = message.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    # torch writes "RuntimeError: out of luck" into one text.
    kind, separator, text = message["message"].partition(": ")
    is_typed = bool(separator) and kind.replace(".", "_").isidentifier()
    timestamp = extra.get("timestamp")
    return RankError(
        source="torchrun",
        type=kind if is_typed else "",
        message=text if is_typed else message["message"],
        traceback=_text(extra, "py_callstack"),
        time=float(timestamp) if isinstance(timestamp, str) and timestamp.isdecimal() else None,
    )


def _text(entry: dict[str, Any], name: str) -> str:
    value = entry.get(name)
    return value if isinstance(value, str) else ""


def _integer(entry: dict[str, Any], name: str) -> int | None:
    value = entry.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(entry: dict[str, Any], name: str) -> float | None:
    value = entry.get(name)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
