"""A full disk: a ballast file fills the file system of the checkpoints, and is deleted later."""

import errno
import shutil
from contextlib import contextmanager
from pathlib import Path

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.faults.fault import Fault
from lockstep_trainer.faults.kind import Kind, Step, Target, needs_checkpoints
from lockstep_trainer.layout.mesh import Layout

BALLAST = ".ballast"
_MIB = 1 << 20
# A larger file system is most likely the machine's own.
_LARGEST_TO_FILL_BYTES = 256 * _MIB


@contextmanager
def _fill(fault: Fault, target: Target) -> Step:
    target.checkpoints.mkdir(parents=True, exist_ok=True)
    ballast = target.checkpoints / BALLAST
    _fill_up(ballast)
    yield
    # The ballast stays while the next step has the fault too.
    if not fault.is_due(target.batch[0] + 1):
        ballast.unlink()


def _fill_up(ballast: Path) -> None:
    # Smaller and smaller writes: a write of 1 MiB fails while almost 1 MiB is still free.
    for chunk_bytes in (_MIB, 4096, 1):
        try:
            with ballast.open("ab", buffering=0) as file:
                while file.write(bytes(chunk_bytes)):
                    pass
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def _refuses(fault: Fault, config: TrainConfig, layout: Layout) -> str | None:
    if config.checkpoint_dir is None:
        return needs_checkpoints(fault, config, layout)
    folder = config.checkpoint_dir.absolute()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    total_bytes = shutil.disk_usage(nearest).total
    if total_bytes <= _LARGEST_TO_FILL_BYTES:
        return None
    return (
        f"it would fill the file system of --checkpoint-dir {config.checkpoint_dir}, of "
        f"{total_bytes // _MIB} MiB; mount one of {_LARGEST_TO_FILL_BYTES // _MIB} MiB or less "
        "there, such as a tmpfs"
    )


KIND = Kind(name="full-disk", in_step=_fill, refuses=_refuses)
