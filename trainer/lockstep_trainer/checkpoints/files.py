"""Checkpoints as files: committed by one rename, verified by checksums, searched newest first.

A checkpoint is the folder ``step-00000100``: files of the ranks, and a manifest with the checksum
of each. The folder is always new, the files are synced to the disk, and the manifest is written
last and renamed into place. A kill at any moment therefore leaves either a complete checkpoint or
a folder without a manifest, which does not count as a checkpoint.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from lockstep_records.file_access.atomic_file import sync_folder, write_atomically

Facts: TypeAlias = dict[str, int | str]

MANIFEST = "manifest.json"
_VERSION = 2
_NAME = re.compile(r"^step-(\d{8,})$")
# Bound of a read: a damaged or foreign file must not fill the memory.
_MAX_MANIFEST_BYTES = 16 << 20


class _Manifest(msgspec.Struct):
    version: Literal[2]
    step: int
    files: dict[str, str]
    facts: Facts


class InvalidCheckpointError(Exception):
    """A checkpoint cannot be trusted; the text says which and why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A committed checkpoint, with the checksum of every file but the manifest."""

    path: Path
    step: int
    facts: Facts
    sha256_by_file: Mapping[str, str]


def folder_of(root: Path, step: int) -> Path:
    """The folder of a step's checkpoint, whether it exists or not."""
    return root / f"step-{step:08d}"


def make_fresh(folder: Path) -> None:
    """Creates an empty folder for a checkpoint, in place of one that no run resumes from."""
    remove(folder)
    folder.mkdir(parents=True)


def remove(folder: Path) -> None:
    """Deletes a checkpoint, complete or not."""
    # The manifest first: a kill in the middle of rmtree must not leave a manifest without files.
    (folder / MANIFEST).unlink(missing_ok=True)
    if folder.exists():
        shutil.rmtree(folder)


def commit(folder: Path, step: int, sha256_by_file: Mapping[str, str], facts: Facts) -> Checkpoint:
    """Makes a checkpoint of files that are written and synced; or OSError."""
    manifest = {"version": _VERSION, "step": step, "files": dict(sha256_by_file), "facts": facts}
    # The names of the shards have to be on the disk before the manifest that lists them.
    sync_folder(folder)
    write_atomically(folder / MANIFEST, json.dumps(manifest, indent=2), durable=True)
    sync_folder(folder.parent)
    return read(folder)


def sha256_of(path: Path) -> str:
    """Checksum of a file, in hexadecimal digits; InvalidCheckpointError if it cannot be read."""
    try:
        with path.open("rb") as file:
            # Drops clean pages of the file from the cache, so that the checksum is of the disk.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InvalidCheckpointError(
            f"{path.parent.name} has no readable {path.name} ({error.strerror})"
        ) from error


def verify(path: Path) -> Checkpoint:
    """The checkpoint in a folder, every file of it verified; or InvalidCheckpointError."""
    checkpoint = read(path)
    for name, sha256 in checkpoint.sha256_by_file.items():
        if sha256_of(path / name) != sha256:
            raise InvalidCheckpointError(f"{path.name}: {name} is not what its manifest says")
    return checkpoint


def read(path: Path) -> Checkpoint:
    """The checkpoint in a folder, by its manifest alone; or InvalidCheckpointError."""
    try:
        with (path / MANIFEST).open("rb") as file:
            manifest = msgspec.json.decode(file.read(_MAX_MANIFEST_BYTES), type=_Manifest)
    except FileNotFoundError as error:
        raise InvalidCheckpointError(f"{path.name} has no manifest: it was not finished") from error
    except OSError as error:
        raise InvalidCheckpointError(
            f"{path.name} has no readable manifest ({error.strerror})"
        ) from error
    except msgspec.ValidationError:
        manifest = None
    # Deeply nested JSON raises RecursionError.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidCheckpointError(f"{path.name}: the manifest is not JSON") from error
    # A name with a slash could point outside the folder, which verify would then read.
    if (
        manifest is None
        or folder_of(path.parent, manifest.step) != path
        or not manifest.files
        or any(name != Path(name).name for name in manifest.files)
    ):
        raise InvalidCheckpointError(f"{path.name}: the manifest is none of version {_VERSION}")
    return Checkpoint(
        path=path, step=manifest.step, facts=manifest.facts, sha256_by_file=manifest.files
    )


def find_newest(
    root: Path, check: Callable[[Path], Checkpoint] = verify
) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that ``check`` finds valid, or None; and why each newer one is not."""
    reasons: list[str] = []
    for path in _newest_first(root):
        try:
            return check(path), reasons
        except InvalidCheckpointError as error:
            reasons.append(str(error))
    return None, reasons


def find_newest_committed(root: Path) -> Checkpoint | None:
    """The newest checkpoint with a manifest; quick, because its files are not read."""
    return find_newest(root, read)[0]


def has_checkpoints(root: Path) -> bool:
    """Whether a folder holds any checkpoint, valid or not."""
    return bool(_newest_first(root))


def keep_newest(root: Path, valid: Checkpoint, keep: int) -> None:
    """Deletes all but ``keep`` checkpoints, oldest first, the unfinished, and never ``valid``."""
    others = []
    for path in _newest_first(root):
        # A killed save left it; nothing else deletes it when no later save has the same step.
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
        path: int(name[1]) for path in root.iterdir() if (name := _NAME.match(path.name))
    }
    return sorted(step_by_path, key=step_by_path.__getitem__, reverse=True)
