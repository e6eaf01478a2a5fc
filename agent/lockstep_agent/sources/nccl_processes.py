"""Processes of NCCL and RCCL on this node whose status socket (RAS) may be asked, and of which job.

All of it is the kernel's word but for the environment, which is the process's own: who listens, as
which user, in which network namespace. A version is what the mapped library is, never what answers:
asking old ones has crashed jobs.
"""

import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from ipaddress import ip_address
from pathlib import Path

from lockstep_agent.sources.job_processes import (
    IDENTITY_VARIABLES,
    JobProcess,
    ProcessFinder,
    read_bytes,
)
from lockstep_records.nccl.ras_answer import RasError, may_be_asked, parse_version

SETTLED_SECONDS = 120.0
"""Age of a process before which it may still be making its first communicator."""
_PORT = 28028
_MAX_TABLE_BYTES, _MAX_MAPS_BYTES, _MAX_LIBRARY_BYTES = 1 << 20, 8 << 20, 1 << 30
_CHUNK_BYTES, _OVERLAP_BYTES = 4 << 20, 64
_LISTENS = "0A"
_LIBRARY = re.compile(
    r"^\S+ r\S+ \S+ \S+ (\d+) +(/[^\n]*/lib[nr]ccl[\w-]{0,20}\.so([.\d]{0,20}))$", re.MULTILINE
)
_VERSION = re.compile(rb"[NR]CCL version (\d{1,2}\.\d{1,2}\.\d{1,3})")
_NAMES = (*IDENTITY_VARIABLES, "NCCL_RAS_ADDR", "NCCL_RAS_ENABLE")


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """A status socket: all processes of a user in a network namespace share a port.

    Attributes:
        network: inode of the namespace.
        address: of the listener, as the kernel has it.
    """

    network: int
    user: int
    port: int
    address: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NcclProcess(JobProcess):
    """A process that has NCCL mapped and whose user listens."""

    endpoint: Endpoint
    version: tuple[int, ...]


@dataclass(slots=True)
class NcclProcesses(ProcessFinder[NcclProcess]):
    """Finds them; of one whose version is too old or unknown nobody is asked."""

    settled_seconds: float = SETTLED_SECONDS
    _versions: dict[tuple[int, int, int], tuple[int, ...] | None] = field(default_factory=dict)
    _tables: dict[int, list["Listener"]] = field(default_factory=dict)

    def find(self) -> list[NcclProcess]:
        """Those that may be asked now."""
        self._tables.clear()
        found = ProcessFinder.find(self)
        return [each for each in found if may_be_asked(each.version)]

    def _read_process(self, pid: int, start: int) -> NcclProcess | None:
        folder = self.procfs / str(pid)
        environment = self.read_environment(folder, _NAMES)
        network = (folder / "ns" / "net").stat().st_ino
        if network not in self._tables:
            self._tables[network] = list(_listeners(folder))
        user = folder.stat().st_uid
        endpoint = _endpoint(environment, network, user, self._tables[network])
        if endpoint is None or (version := self._version(folder)) is None:
            return None
        process = asdict(self.identify(pid, start, environment))
        process["addresses"] = frozenset(_addresses(folder))
        return NcclProcess(**process, endpoint=endpoint, version=version)

    def _version(self, folder: Path) -> tuple[int, ...] | None:
        """Version of the library that the process maps; None without one, or where unknown."""
        text = read_bytes(folder / "maps", _MAX_MAPS_BYTES).decode(errors="replace")
        match = _LIBRARY.search(text)
        if match is None:
            return None
        try:
            return parse_version(match[3].removeprefix(".2.") and f"2.{match[3][3:]}")
        except RasError:
            pass
        root = folder / "root"
        path = root / match[2].removeprefix("/")
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except PermissionError:
            self.refuse("DAC_READ_SEARCH")
            return None
        try:
            status = os.fstat(descriptor)
            # It is the file that is mapped, whatever lies at its path by now.
            if not stat.S_ISREG(status.st_mode) or status.st_ino != int(match[1]):
                return None
            key = (status.st_dev, status.st_ino, status.st_mtime_ns)
            if key not in self._versions:
                self._versions[key] = _find_version(descriptor)
            return self._versions[key]
        finally:
            os.close(descriptor)


def _find_version(descriptor: int) -> tuple[int, ...] | None:
    rest = b""
    for offset in range(0, _MAX_LIBRARY_BYTES, _CHUNK_BYTES):
        chunk = os.pread(descriptor, _CHUNK_BYTES, offset)
        if not chunk:
            return None
        if match := _VERSION.search(rest + chunk):
            return parse_version(match[1].decode())
        rest = chunk[-_OVERLAP_BYTES:]
    return None


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket that listens, and its user, by the kernel's table."""

    address: str
    port: int
    user: int


def _listeners(folder: Path) -> Iterator[Listener]:
    """Sockets that listen in the network namespace of a process; the kernel lists them first."""
    for name in ("tcp6", "tcp"):
        try:
            text = read_bytes(folder / "net" / name, _MAX_TABLE_BYTES).decode(errors="replace")
        except FileNotFoundError:  # a kernel without IPv6
            continue
        for line in text.splitlines()[1:]:
            columns = line.split()
            if len(columns) > 7 and columns[3] == _LISTENS:  # noqa: PLR2004  # the user's is the 8th
                address, _, port = columns[1].partition(":")
                yield Listener(_address(address), int(port, 16), int(columns[7]))


def _addresses(folder: Path) -> Iterator[str]:
    """Addresses of the network namespace of a process."""
    leaf = ""
    for line in read_bytes(folder / "net" / "fib_trie", _MAX_TABLE_BYTES).decode().splitlines():
        words = line.split()
        if words[:1] == ["|--"]:
            leaf = words[1]
        elif words[1:3] == ["host", "LOCAL"]:
            yield leaf
    try:
        text = read_bytes(folder / "net" / "if_inet6", _MAX_TABLE_BYTES).decode()
    except FileNotFoundError:  # a kernel without IPv6
        return
    yield from (str(ip_address(bytes.fromhex(line[:32]))) for line in text.splitlines())


def _address(text: str) -> str:
    """An address out of the words of the machine's order in which the kernel writes it."""
    words = (bytes.fromhex(text[at : at + 8]) for at in range(0, len(text), 8))
    raw = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    return str(ip_address(raw))


_ANY = {"::": "::1", "0.0.0.0": "127.0.0.1"}  # noqa: S104  # what a listener has, not ours


def still_listens(procfs: Path, process: NcclProcess) -> bool:
    """Whether the socket is the user's now too: ports are anybody's once they are free."""
    endpoint = process.endpoint
    try:
        listeners = list(_listeners(procfs / str(process.pid)))
    except OSError:
        return False
    found = find_endpoint(endpoint.network, endpoint.user, endpoint.port, listeners)
    return found == endpoint


def _endpoint(
    environment: Mapping[str, str], network: int, user: int, listeners: list[Listener]
) -> Endpoint | None:
    if environment.get("NCCL_RAS_ENABLE") == "0":
        return None
    text = environment.get("NCCL_RAS_ADDR", "").rpartition(":")[2]
    port = int(text) if text.isdecimal() and len(text) <= 5 else _PORT  # noqa: PLR2004  # 65535
    return find_endpoint(network, user, port, listeners)


def find_endpoint(network: int, user: int, port: int, listeners: list[Listener]) -> Endpoint | None:
    """The socket of a user; None without one, and where another user would answer there."""
    same_port = [each for each in listeners if each.port == port]
    for own in same_port:
        target = _ANY.get(own.address, own.address)
        rivals = {each.user for each in same_port if each.address in {target, own.address, "::"}}
        if rivals == {user}:
            return Endpoint(network=network, user=user, port=port, address=target)
    return None
