"""Checkpoints as files: committed by one rename, proved by checksums, the newest valid one found.

A checkpoint is the folder ``step-00000100``: files of the ranks, and a manifest with the checksum
of each. The folder is always a fresh one, the files are synced to the disk, and the manifest comes
last, under another name until a rename makes it count. So a kill at any moment leaves the
checkpoint whole, or without a manifest and then no checkpoint at all.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

Facts: TypeAlias = dict[str, int | str]

MANIFEST = "manifest.json"
_VERSION = 2
_NAME = re.compile(r"^step-(\d{8,})$")
_UNCOMMITTED = ".uncommitted"
_MAX_MANIFEST_BYTES = 16 << 20


class InvalidCheckpointError(Exception):
    """A checkpoint cannot be trusted; the text says which and why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """One that was committed.

    Attributes:
        step: optimizer steps that are in it.
        facts: what the run that wrote it told about itself.
        sha256_by_file: of every file but the manifest.
    """

    path: Path
    step: int
    facts: Facts
    sha256_by_file: Mapping[str, str]


def folder_of(root: Path, step: int) -> Path:
    """Where the checkpoint of a step lies or would lie."""
    return root / f"step-{step:08d}"


def make_fresh(folder: Path) -> None:
    """An empty folder for a new checkpoint.

    Only an invalid one, or one that was never committed, can be in the way: a run goes on from the
    newest valid one and so comes to a later step.
    """
    remove(folder)
    folder.mkdir(parents=True)


def remove(folder: Path) -> None:
    """Deletes a checkpoint, or what is there of it: first of all it counts no more."""
    (folder / MANIFEST).unlink(missing_ok=True)
    if folder.exists():
        shutil.rmtree(folder)


def commit(folder: Path, step: int, sha256_by_file: Mapping[str, str], facts: Facts) -> Checkpoint:
    """Makes the files in a folder, written and synced, a checkpoint.

    Raises:
        OSError: the disk does not take it.
    """
    manifest = {"version": _VERSION, "step": step, "files": dict(sha256_by_file), "facts": facts}
    aside = folder / f"{MANIFEST}{_UNCOMMITTED}"
    with aside.open("xb") as file:
        file.write(json.dumps(manifest, indent=2).encode())
        file.flush()
        os.fsync(file.fileno())
    _sync(folder)
    aside.rename(folder / MANIFEST)
    _sync(folder)
    _sync(folder.parent)
    return read(folder)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """Checksum of a file, read from the disk where the system can be told to.

    Raises:
        InvalidCheckpointError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InvalidCheckpointError(
            f"{path.parent.name} has no readable {path.name} ({error.strerror})"
        ) from error


def verify(path: Path) -> Checkpoint:
    """The checkpoint in a folder, every file of it proved against the manifest.

    Raises:
        InvalidCheckpointError: a file is missing, cut short or altered.
    """
    checkpoint = read(path)
    for name, sha256 in checkpoint.sha256_by_file.items():
        if sha256_of(path / name) != sha256:
            raise InvalidCheckpointError(f"{path.name}: {name} is not what its manifest says")
    return checkpoint


def read(path: Path) -> Checkpoint:
    """The checkpoint in a folder by its manifest alone.

    Raises:
        InvalidCheckpointError: there is no manifest, or it is none.
    """
    try:
        with (path / MANIFEST).open("rb") as file:
            told = json.loads(file.read(_MAX_MANIFEST_BYTES))
    except FileNotFoundError as error:
        raise InvalidCheckpointError(f"{path.name} has no manifest: it was not finished") from error
    except OSError as error:
        raise InvalidCheckpointError(
            f"{path.name} has no readable manifest ({error.strerror})"
        ) from error
    except (ValueError, RecursionError) as error:
        raise InvalidCheckpointError(f"{path.name}: the manifest is no JSON") from error
    named = _NAME.match(path.name)
    match told:
        case {"version": 2, "step": int(step), "files": dict(files), "facts": dict(facts)}:
            if named and step == int(named[1]) and _are_checksums(files):
                return Checkpoint(path=path, step=step, facts=facts, sha256_by_file=files)
    raise InvalidCheckpointError(f"{path.name}: the manifest is none of version {_VERSION}")


def _are_checksums(files: Mapping[str, object]) -> bool:
    return bool(files) and all(
        isinstance(sha256, str) and name == Path(name).name for name, sha256 in files.items()
    )


def find_newest(root: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest valid checkpoint, and why each newer one was passed over."""
    passed_over: list[str] = []
    for path in _newest_first(root):
        try:
            return verify(path), passed_over
        except InvalidCheckpointError as error:
            passed_over.append(str(error))
    return None, passed_over


def find_newest_committed(root: Path) -> Checkpoint | None:
    """The newest checkpoint with a manifest; its files are not looked at, so that it is quick."""
    for path in _newest_first(root):
        try:
            return read(path)
        except InvalidCheckpointError:
            continue
    return None


def has_checkpoints(root: Path) -> bool:
    """Whether a folder holds any checkpoint, valid or not."""
    return bool(_newest_first(root))


def keep_newest(root: Path, valid: Checkpoint, keep: int) -> None:
    """Deletes all but ``keep`` checkpoints, oldest first; never ``valid``, just proved.

    What was never finished goes too: nobody is writing while this runs.
    """
    others = []
    for path in _newest_first(root):
        if not (path / MANIFEST).exists():
            remove(path)
        elif path != valid.path:
            others.append(path)
    for path in reversed(others[keep - 1 :]):
        remove(path)


def _newest_first(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    step_by_path = {
        path: int(named[1]) for path in root.iterdir() if (named := _NAME.match(path.name))
    }
    return sorted(step_by_path, key=step_by_path.__getitem__, reverse=True)
