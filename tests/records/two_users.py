"""Acts as another user of the machine, which a test that runs as root can."""

import os
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

TENANT, NEIGHBOUR = 65534, 65533
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")


def run_as(user: int, action: Callable[[], object], groups: tuple[int, ...] = ()) -> None:
    """Runs an action in a child process of that user; an error in it fails the test."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups(groups)
            os.setgid(user)
            os.setuid(user)
            os.umask(0o022)
            action()
            status = 0
        except BaseException:  # noqa: BLE001  # the child must end here, whatever the action does
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def shared_root(folder: Path) -> Path:
    """A root of jobs as on a node that several users share: anybody adds, nobody takes away."""
    folder.chmod(0o755)
    (folder / "jobs").mkdir()
    (folder / "jobs").chmod(0o1777)
    return folder
