"""Progress of a rank that stands, as its watch finds it: a file beside its page."""

import json
from dataclasses import dataclass
from typing import Any, TypeGuard

from lockstep_outcomes.progress.missing import Device, Launched
from lockstep_records.files.rank_files import read_object, write_rank_file
from lockstep_records.page.reader import Page

_SUFFIX = ".progress.json"
_MAX_BYTES = 64 << 10


@dataclass(frozen=True, kw_only=True, slots=True)
class RankProgress:
    """How far a rank has come.

    Attributes:
        device: whether its device still has work; None where it has none, or did not answer.
        launched: collectives by group.
    """

    device: Device | None = None
    launched: dict[str, Launched]


def write_progress(page: Page, progress: RankProgress) -> None:
    """Writes it for the standstill that the page shows.

    Raises:
        OSError: the folder cannot be written.
    """
    document = {
        "standing_since_ns": page.progress_ns,
        "device": progress.device,
        "launched": {group: launched.number for group, launched in progress.launched.items()},
    }
    write_rank_file(page.path, _SUFFIX, json.dumps(document).encode())


def read_progress(page: Page) -> RankProgress:
    """What the rank's watch has found; nothing where it is of an earlier standstill."""
    document = read_object(page.path.with_suffix(_SUFFIX), _MAX_BYTES) or {}
    if document.get("standing_since_ns") != page.progress_ns:
        return RankProgress(launched={})
    device, launched = document.get("device"), document.get("launched")
    return RankProgress(
        device=device if device in {"pending", "passed"} else None,
        launched={
            str(group): Launched(number)
            for group, number in (launched.items() if isinstance(launched, dict) else ())
            if is_count(number)
        },
    )


def is_count(value: Any) -> TypeGuard[int]:
    """Whether a value of a file is a number from 0 on."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
