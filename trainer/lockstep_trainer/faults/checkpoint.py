"""Damage to the newest checkpoint, after its step: a byte altered, a file truncated or deleted."""

import os
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

from lockstep_trainer.checkpoints.files import find_newest
from lockstep_trainer.faults.fault import Fault
from lockstep_trainer.faults.kind import Kind, Step, Target, needs_checkpoints


def _corrupt(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0xFF]))


def _damage_kind(name: str, damage: Callable[[Path], None]) -> Kind:
    @contextmanager
    def damage_newest(_fault: Fault, target: Target) -> Step:
        yield  # the checkpoint of this step is written before the context is left
        newest, _ = find_newest(target.checkpoints)
        if newest is None:
            sys.stderr.write(f"fault: {name} found no valid checkpoint to damage\n")
            return
        files = [path for path in newest.path.rglob("*") if path.is_file()]
        # The largest file holds the tensors; the manifest and the index are smaller.
        damage(max(files, key=lambda path: (path.stat().st_size, path.name)))

    return Kind(name=name, in_step=damage_newest, refuses=needs_checkpoints)


KINDS = (
    _damage_kind("corrupt-checkpoint", _corrupt),
    _damage_kind("truncate-checkpoint", lambda path: os.truncate(path, path.stat().st_size // 2)),
    _damage_kind("lose-checkpoint", Path.unlink),
)
