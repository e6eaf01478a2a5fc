"""The duty to deliver on a node: the agent where one does, else one launcher of each user.

A lock of the kernel says so, which ends with its process however that ends. Two that deliver the
same are no harm: the ledger counts an event once.
"""

import fcntl
import os
from pathlib import Path

_AGENT = ".delivery-agent.lock"


class DeliveryDuty:
    """The duty to deliver below ``root``, taken for the life of this object or until ``release``.

    An agent takes the duty for all users and asks nobody.
    """

    def __init__(self, root: Path, *, is_agent: bool = False) -> None:
        self._root, self._is_agent = root, is_agent
        self._descriptor: int | None = None

    def take(self) -> bool:
        """Whether this process delivers from now on; False while an agent or a sibling does."""
        if self._descriptor is not None:
            return self._is_agent or not self._agent_delivers()
        name = _AGENT if self._is_agent else f".delivery-{os.getuid()}.lock"
        descriptor = _open(self._root / name)
        # A folder that cannot be written holds no lock, and the ledger counts an event once anyway.
        if descriptor is None:
            return True
        if not _lock(descriptor, fcntl.LOCK_EX):
            os.close(descriptor)
            return self._is_agent
        self._descriptor = descriptor
        return self._is_agent or not self._agent_delivers()

    def release(self) -> None:
        """Gives the duty up."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _agent_delivers(self) -> bool:
        descriptor = _open(self._root / _AGENT, create=False)
        if descriptor is None:
            return False
        free = _lock(descriptor, fcntl.LOCK_SH)
        os.close(descriptor)
        return not free


def _open(path: Path, *, create: bool = True) -> int | None:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    flags |= os.O_CREAT if create else 0
    try:
        return os.open(path, flags, 0o644)
    except OSError:
        return None


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
