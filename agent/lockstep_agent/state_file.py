"""A small JSON file that outlives the agent: written beside and renamed, read with distrust."""

import json
import logging
import os
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)
_MAX_BYTES = 16 << 20
VERSION = 1


class StateFile:
    """Keeps one object; without a folder that can be written it keeps nothing, and says so once.

    Args:
        path: None keeps nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._path, self._said = path, False

    def load(self) -> dict[str, Any]:
        """What was kept; empty when there is nothing, or nothing that can be read."""
        if self._path is None:
            return {}
        try:
            with self._path.open("rb") as file:
                told = json.loads(file.read(_MAX_BYTES))
            if not isinstance(told, dict) or told.get("version") != VERSION:
                raise ValueError("it is of another version")  # noqa: TRY301  # told like the rest
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            _log.warning("state=%s cannot be read, counting starts again: %s", self._path, error)
            return {}
        return told

    def save(self, told: dict[str, Any]) -> None:
        """Keeps an object; a reader finds the old one or the new one, whole."""
        if self._path is None:
            return
        beside = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with beside.open("w", encoding="utf-8") as file:
                json.dump(told | {"version": VERSION}, file, separators=(",", ":"))
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self._path)
        except OSError as error:
            if not self._said:
                _log.warning("state=%s cannot be written: %s", self._path, error.strerror)
            self._said = True
