"""Harm to the newest checkpoint, after its step: a byte altered, a file cut short or gone."""

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


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _kind(name: str, harm: Callable[[Path], None]) -> Kind:
    @contextmanager
    def in_step(_fault: Fault, target: Target) -> Step:
        yield
        newest, _ = find_newest(target.checkpoints)
        if newest is None:
            sys.stderr.write(f"fault: {name} found no valid checkpoint to harm\n")
            return
        files = [path for path in newest.path.rglob("*") if path.is_file()]
        harm(max(files, key=lambda path: (path.stat().st_size, path.name)))

    return Kind(name=name, in_step=in_step, refuses=needs_checkpoints)


KINDS = (
    _kind("corrupt-checkpoint", _corrupt),
    _kind("truncate-checkpoint", _truncate),
    _kind("lose-checkpoint", Path.unlink),
)
