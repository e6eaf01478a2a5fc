"""A small JSON file that outlives the agent: replaced in one move, read with distrust."""

import errno
import fcntl
import json
import logging
from pathlib import Path
from typing import Any, BinaryIO

from lockstep_records.file_access.atomic_file import write_atomically

_log = logging.getLogger(__name__)
_MAX_BYTES = 16 << 20
_MODE = 0o640  # it holds texts of the kernel log, which is not everybody's to read
VERSION = 1
_LOCK_NAME = "agent.lock"


def lock_state(folder: Path | None) -> BinaryIO | None:
    """Keeps every other agent off a folder of state, for as long as the file stays open.

    Two agents on one folder would each replace what the other has counted, and send each event
    twice.

    Returns:
        None without a writable folder: nothing is stored then.

    Raises:
        ValueError: another agent has it.
    """
    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / _LOCK_NAME).open("ab")
    except OSError:
        return None
    try:
        # Unlike a lock by fcntl it stays when another descriptor of the file is closed.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        if error.errno not in {errno.EWOULDBLOCK, errno.EACCES}:
            return None  # a file system without locks
        raise ValueError(
            f"--state {folder} is in use by another running agent; stop it, or name another folder"
        ) from error
    return file


class StateFile:
    """Keeps one JSON object; without a writable folder it keeps nothing and logs that once.

    Args:
        path: None keeps nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._path, self._has_logged = path, False

    def load(self) -> dict[str, Any]:
        """The object that was saved last; empty when there is none, or none that can be read."""
        if self._path is None:
            return {}
        try:
            with self._path.open("rb") as file:
                state = json.loads(file.read(_MAX_BYTES))
            if not isinstance(state, dict) or state.get("version") != VERSION:
                raise ValueError("it is of another version")  # noqa: TRY301  # logged like the rest
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            _log.warning("state=%s cannot be read, counting starts again: %s", self._path, error)
            return {}
        return state

    def save(self, state: dict[str, Any]) -> None:
        """Replaces the object; after a power cut a reader finds the old one or the new one."""
        if self._path is None:
            return
        content = json.dumps(state | {"version": VERSION}, separators=(",", ":"))
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, content, mode=_MODE, durable=True)
        except OSError as error:
            if not self._has_logged:
                _log.warning("state=%s cannot be written: %s", self._path, error.strerror)
            self._has_logged = True
