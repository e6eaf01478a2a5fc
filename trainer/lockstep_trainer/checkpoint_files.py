"""Checkpoints as files: committed by one rename, proved by a checksum, the newest valid one found.

A checkpoint is the folder ``step-00000100`` with ``state.pt`` and a manifest. It is written under
another name, synced to the disk and renamed, so a kill at any moment leaves it whole or absent.
"""

import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

Facts: TypeAlias = dict[str, int | str]

STATE = "state.pt"
MANIFEST = "manifest.json"
_VERSION = 1
_NAME = re.compile(r"^step-(\d{8,})$")
_UNFINISHED = ".unfinished-"
_MAX_MANIFEST_BYTES = 1 << 20


class InvalidCheckpointError(Exception):
    """A checkpoint cannot be trusted; the text says which and why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """One that was found whole.

    Attributes:
        step: optimizer steps that are in it.
        facts: what the run that wrote it told about itself.
    """

    path: Path
    step: int
    facts: Facts


def commit(root: Path, step: int, state: bytes, facts: Facts) -> Checkpoint:
    """Writes a checkpoint and proves it by reading it back.

    Raises:
        OSError: the disk does not take it.
        InvalidCheckpointError: what was read back is not what was written.
    """
    root.mkdir(parents=True, exist_ok=True)
    for left in root.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(left)
    target = root / f"step-{step:08d}"
    aside = root / f"{_UNFINISHED}{target.name}"
    aside.mkdir()
    manifest = {
        "version": _VERSION,
        "step": step,
        "bytes": len(state),
        "sha256": hashlib.sha256(state).hexdigest(),
        "facts": facts,
    }
    _write(aside / STATE, state)
    _write(aside / MANIFEST, json.dumps(manifest, indent=2).encode())
    _sync(aside)
    if target.exists():  # only an invalid one can stand here: runs go on from the newest valid
        shutil.rmtree(target)
    aside.rename(target)
    _sync(root)
    return verify(target)


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def verify(path: Path) -> Checkpoint:
    """The checkpoint in a folder, proved against its manifest.

    Raises:
        InvalidCheckpointError: a file is missing, cut short or altered.
    """
    step, sha256, facts = _read_manifest(path)
    try:
        with (path / STATE).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InvalidCheckpointError(
            f"{path.name} has no readable {STATE} ({error.strerror})"
        ) from error
    if found != sha256:
        raise InvalidCheckpointError(f"{path.name}: {STATE} is not what its manifest says")
    return Checkpoint(path=path, step=step, facts=facts)


def _read_manifest(path: Path) -> tuple[int, str, Facts]:
    try:
        with (path / MANIFEST).open("rb") as file:
            told = json.loads(file.read(_MAX_MANIFEST_BYTES))
    except OSError as error:
        raise InvalidCheckpointError(
            f"{path.name} has no readable manifest ({error.strerror})"
        ) from error
    except (ValueError, RecursionError) as error:
        raise InvalidCheckpointError(f"{path.name}: the manifest is no JSON") from error
    named = _NAME.match(path.name)
    match told:
        case {"version": 1, "step": int(step), "sha256": str(sha256), "facts": dict(facts)}:
            if named and step == int(named[1]):
                return step, sha256, facts
    raise InvalidCheckpointError(f"{path.name}: the manifest is none of version {_VERSION}")


def find_newest(root: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest valid checkpoint, and why each newer one was passed over."""
    passed_over: list[str] = []
    for path in _newest_first(root):
        try:
            return verify(path), passed_over
        except InvalidCheckpointError as error:
            passed_over.append(str(error))
    return None, passed_over


def has_checkpoints(root: Path) -> bool:
    """Whether a folder holds any checkpoint, valid or not."""
    return bool(_newest_first(root))


def keep_newest(root: Path, valid: Checkpoint, keep: int) -> None:
    """Deletes all but ``keep`` checkpoints, oldest first; never ``valid``, just proved."""
    others = [path for path in _newest_first(root) if path != valid.path]
    for path in reversed(others[keep - 1 :]):
        shutil.rmtree(path)


def _newest_first(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    step_by_path = {
        path: int(named[1]) for path in root.iterdir() if (named := _NAME.match(path.name))
    }
    return sorted(step_by_path, key=step_by_path.__getitem__, reverse=True)
