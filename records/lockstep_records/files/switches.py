"""Switches of a running job: one small JSON file in its folder, which every rank polls.

They set what to record from the next steps on, without a restart. The file is replaced in one move,
so that no rank reads half of it.
"""

import json
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from lockstep_records.file_access.foreign_files import read_foreign
from lockstep_records.file_access.own_files import replace_own_file

FILE_NAME = "switches.json"
MAX_BYTES = 64 << 10
MAX_PROFILED_STEPS = 100
MAX_SAMPLE_EVERY = 1_000_000
MAX_HANG_SECONDS = 86_400.0
_ID = re.compile(r"[a-z0-9-]{1,40}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileRequest:
    """A trace of next steps by torch.profiler; a rank answers each ``id`` once. Or ValueError."""

    id: str
    steps: int
    ranks: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not _ID.fullmatch(self.id):
            raise ValueError(
                f"profile.id {self.id!r} must be 1 to 40 small letters, digits or dashes"
            )
        _check_integer("profile.steps", self.steps, 1, MAX_PROFILED_STEPS)
        for rank in self.ranks or ():
            _check_integer("profile.ranks", rank, 0, 1 << 30)


@dataclass(frozen=True, kw_only=True, slots=True)
class Switches:
    """What a running job records; a ValueError names the field.

    Args:
        enabled: whether the monitor records at all.
        sample_every: period in steps of those whose operations are recorded; 0 for none.
        hang_seconds: time without progress that a hang is never shorter than; 0 turns the watch
            off. Of these None lets the rank's own setting apply.
    """

    enabled: bool = True
    sample_every: int | None = None
    hang_seconds: float | None = None
    profile: ProfileRequest | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.enabled, bool):
            raise ValueError(f"enabled is {self.enabled!r}; it must be true or false")  # noqa: TRY004  # bad input is a ValueError
        if self.sample_every is not None:
            _check_integer("sample_every", self.sample_every, 0, MAX_SAMPLE_EVERY)
        if self.hang_seconds is not None and not _is_number(
            self.hang_seconds, 0.0, MAX_HANG_SECONDS
        ):
            raise ValueError(
                f"hang_seconds is {self.hang_seconds!r}; it must be 0 (off) to {MAX_HANG_SECONDS:g}"
            )


def _check_integer(name: str, value: object, low: int, high: int) -> None:
    # A bool is an int in Python: true would pass as 1.
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name} is {value!r}; it must be a whole number from {low} to {high}")


def _is_number(value: object, low: float, high: float) -> bool:
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return numeric and low <= value <= high  # type: ignore[operator]  # numeric says so


def switches_path(job: Path) -> Path:
    """The file of switches of a job."""
    return job / FILE_NAME


def read_switches(path: Path) -> Switches:
    """The switches of a job, the defaults without a file; a ValueError names the field."""
    try:
        data = read_foreign(path, MAX_BYTES)
    except FileNotFoundError:
        return Switches()
    except OSError as error:
        raise ValueError(f"switches {path} cannot be read: {error}") from error
    try:
        return _parse(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"switches {path}: {error}") from error


def _parse(data: bytes) -> Switches:
    switches = _object("the file", json.loads(data.decode()), Switches)
    if (profile := switches.get("profile")) is not None:
        request = _object("profile", profile, ProfileRequest)
        missing = {"id", "steps"} - set(request)
        if missing:
            raise ValueError(f"profile lacks {', '.join(sorted(missing))}")
        if (ranks := request.get("ranks")) is not None:
            if not isinstance(ranks, list):
                raise ValueError(f"profile.ranks is {ranks!r}; it must be a list of ranks or null")
            request["ranks"] = tuple(ranks)
        switches["profile"] = ProfileRequest(**request)
    return Switches(**switches)


def _object(name: str, value: Any, kind: type) -> dict[str, Any]:
    names = [field.name for field in fields(kind)]
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a JSON object with {', '.join(names)}")  # noqa: TRY004  # bad input is a ValueError
    for key in value:
        if key not in names:
            raise ValueError(f"{key!r} is not a switch; there are {', '.join(names)}")
    return value


def write_switches(job: Path, switches: Switches) -> Path:
    """Replaces the switches of a job in one move; or OSError."""
    path = switches_path(job)
    replace_own_file(path, json.dumps(asdict(switches)))
    return path
