"""The RDMA ports of the node, from /sys/class/infiniband."""

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass

from lockstep_agent.sources.sysfs import link_target_name, list_names

_log = logging.getLogger(__name__)
_MAX_PORTS = 64
_MANAGED = b"SW_MNG"  # in the VPD of the functions that only the fabric manager may use
_MAX_VPD_BYTES = 1024
_COUNTER_FOLDERS = ("counters", "counters_ext", "hw_counters")


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """One port of an adapter.

    Attributes:
        device: name of the adapter, such as ``mlx5_0``.
        number: name of the port's folder, from "1".
    """

    device: str
    number: str
    adapter: str
    folder: str

    @property
    def labels(self) -> tuple[str, str]:
        """The values of the labels ``device`` and ``port``."""
        return self.device, self.number

    @property
    def driver(self) -> str:
        """Name of the kernel driver; empty where /sys does not name it."""
        return link_target_name(f"{self.adapter}/device/driver")


def counter_files(port: RdmaPort) -> frozenset[str]:
    """The counter files of a port, by their path below its folder."""
    return frozenset(
        f"{folder}/{name}"
        for folder in _COUNTER_FOLDERS
        for name in list_names(f"{port.folder}/{folder}")
    )


class RdmaPorts:
    """Lists the ports, without the functions that only the fabric manager may touch.

    Args:
        is_logging: logs what is absent or skipped; one of several readers is enough.
    """

    def __init__(self, sysfs: str, *, is_logging: bool = False) -> None:
        self._folder = f"{sysfs}/class/infiniband"
        self._managed: dict[str, bool] = {}
        self._is_logging, self._is_absence_logged = is_logging, False

    def list(self) -> tuple[RdmaPort, ...]:
        """The ports of this moment, at most 64; logs their absence once."""
        ports = tuple(self._ports())[:_MAX_PORTS]
        if self._is_logging and not ports and not self._is_absence_logged:
            _log.info("collector=infiniband state=absent reason='no port in %s'", self._folder)
        self._is_absence_logged = not ports
        return ports

    def _ports(self) -> Iterator[RdmaPort]:
        devices = list_names(self._folder)
        self._managed = {
            name: is_managed for name, is_managed in self._managed.items() if name in devices
        }
        for device in devices:
            adapter = f"{self._folder}/{device}"
            # on boards with NVLink switches these functions refuse every read, and each refusal
            # writes a line to the kernel log (node_exporter issue 3434)
            if self._is_managed(device, adapter):
                continue
            for number in list_names(f"{adapter}/ports"):
                if number.isascii() and number.isdigit():
                    yield RdmaPort(device, number, adapter, f"{adapter}/ports/{number}")

    def _is_managed(self, device: str, adapter: str) -> bool:
        if device not in self._managed:
            self._managed[device] = _MANAGED in _read_vital_data(f"{adapter}/device/vpd")
            if self._is_logging and self._managed[device]:
                _log.info("device=%s state=skipped reason='for the fabric manager'", device)
        return self._managed[device]


def _read_vital_data(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return b""
    try:
        return os.read(descriptor, _MAX_VPD_BYTES)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
