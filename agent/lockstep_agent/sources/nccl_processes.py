"""Processes of NCCL and RCCL on this node whose status socket (RAS) may be asked, and of which job.

All of it is the kernel's word but for the environment, which is the process's own: who listens, as
which user, in which network namespace. A version is what the mapped library is, never what answers:
asking old ones has crashed jobs.
"""

import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from itertools import islice
from pathlib import Path

from lockstep_agent.sources.pods import POD_UID
from lockstep_agent.sources.process_job import read_environment, slurm_job_step
from lockstep_records.files.jobs import fit_job_id
from lockstep_records.nccl.ras_answer import RasError, may_be_asked, parse_version

SETTLED_SECONDS = 120.0
"""Age of a process before which it may still be making its first communicator."""
_SECOND_LOOK_SECONDS = 600.0
_PORT = 28028
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_MAX_PROCESSES = 1 << 16
_MAX_TABLE_BYTES, _MAX_MAPS_BYTES, _MAX_LIBRARY_BYTES = 1 << 20, 8 << 20, 1 << 30
_CHUNK_BYTES, _OVERLAP_BYTES = 4 << 20, 64
_LISTENS = "0A"
_START_FIELD = 19
_LIBRARY = re.compile(
    r"^\S+ r\S+ \S+ \S+ (\d+) +(/[^\n]*/lib[nr]ccl[\w-]{0,20}\.so([.\d]{0,20}))$", re.MULTILINE
)
_VERSION = re.compile(rb"[NR]CCL version (\d{1,2}\.\d{1,2}\.\d{1,3})")
_NAMES = (
    *("LOCKSTEP_JOB_ID", "RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_LOCALID"),
    *("SLURM_NTASKS", "SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK"),
    *("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "NCCL_RAS_ADDR", "NCCL_RAS_ENABLE"),
)
_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
_WORLD_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")


_WITHOUT = {
    (19, "SYS_PTRACE"): "no process of another user is seen to use NCCL",
    (2, "DAC_READ_SEARCH"): "environments, and libraries in closed folders, are not read: job and"
    " rank come from Slurm's control group and from answers alone",
}


def missing_words() -> dict[str, str]:
    """A sentence, by capability, for each that this process lacks to see jobs of other users."""
    status = _read(Path("/proc/self/status"), 16 << 10).decode()
    held = next(int(line.split()[1], 16) for line in status.splitlines() if line[:6] == "CapEff")
    return {
        name: f"NCCL's status sockets: without CAP_{name} {words}"
        for (number, name), words in _WITHOUT.items()
        if not held >> number & 1
    }


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
class NcclProcess:
    """A process that has NCCL mapped and whose user listens.

    Attributes:
        inner_pid: in its own PID namespace.
        job_id: by scheduler, launcher or the address of the meeting; as the process says it.
        rank: of the job; None where nothing says it. Likewise the other two.
        pod_uid: of the pod in whose control group it runs; empty outside of Kubernetes.
        addresses: of its network namespace, by one of which its fellows know it.
    """

    pid: int
    inner_pid: int
    start_ticks: int
    endpoint: Endpoint
    version: tuple[int, ...]
    job_id: str
    rank: int | None
    local_rank: int | None
    world_size: int | None
    pod_uid: str
    addresses: frozenset[str]

    def is_at(self, host: str, pid: int) -> bool:
        """Whether an answer means this process; pods have the same pids on every node."""
        return pid == self.inner_pid and (host in self.addresses or not host)


@dataclass(slots=True)
class _ProcessRecord:
    """What is known of a process; maps are read twice in its life at most."""

    process: NcclProcess | None = None
    looks: int = 0


@dataclass(slots=True)
class NcclProcesses:
    """Finds them, and remembers what it has read.

    Args:
        settled_seconds: age from which on a process is looked at.
    """

    procfs: Path = Path("/proc")
    settled_seconds: float = SETTLED_SECONDS
    clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
    _records: dict[tuple[int, int], _ProcessRecord] = field(default_factory=dict)
    _versions: dict[tuple[int, int, int], tuple[int, ...] | None] = field(default_factory=dict)
    refusals: set[str] = field(default_factory=set)

    def find(self) -> list[NcclProcess]:
        """Those that may be asked now; of one whose version is too old or unknown nobody."""
        before, tables = self._records, dict[int, list[Listener]]()
        self._records = {}
        for pid in self._pids():
            start = _start_ticks(self.procfs, pid)
            if start is None:
                continue
            each = self._records[pid, start] = before.get((pid, start)) or _ProcessRecord()
            age_seconds = self.clock() - start / _TICKS_PER_SECOND
            is_due = age_seconds >= (self.settled_seconds, _SECOND_LOOK_SECONDS)[each.looks > 0]
            if each.process is None and each.looks < 2 and is_due:  # noqa: PLR2004  # twice a life
                each.looks += 1
                each.process = self._read_process(pid, start, tables)
        found = [each.process for each in self._records.values() if each.process is not None]
        return [each for each in found if may_be_asked(each.version)]

    def _pids(self) -> Iterator[int]:
        try:
            names = [each.name for each in self.procfs.iterdir() if each.name.isdecimal()]
        except OSError as error:
            self.refusals.add(f"processes cannot be listed: {error.strerror}")
            return
        yield from map(int, islice(names, _MAX_PROCESSES))

    def _read_process(
        self, pid: int, start: int, tables: dict[int, list["Listener"]]
    ) -> NcclProcess | None:
        folder = self.procfs / str(pid)
        try:
            user = folder.stat().st_uid
            environment = self._environment(folder)
            network = (folder / "ns" / "net").stat().st_ino
            if network not in tables:
                tables[network] = list(_listeners(folder))
            endpoint = _endpoint(environment, network, user, tables[network])
            if endpoint is None or (version := self._version(folder)) is None:
                return None
            group = _read(folder / "cgroup", 64 << 10).decode(errors="replace")
            inner_pid, addresses = _inner_pid(folder, pid), frozenset(_addresses(folder))
        except PermissionError:
            self._refuse("SYS_PTRACE")
            return None
        except OSError:  # it has ended
            return None
        return NcclProcess(
            pid=pid,
            inner_pid=inner_pid,
            start_ticks=start,
            endpoint=endpoint,
            version=version,
            job_id=_job_id(environment, group, self.procfs, pid),
            rank=_number(environment, _RANKS),
            local_rank=_number(environment, _LOCAL_RANKS),
            world_size=_number(environment, _WORLD_SIZES),
            pod_uid=(match[1].replace("_", "-") if (match := POD_UID.search(group)) else ""),
            addresses=addresses,
        )

    def _environment(self, folder: Path) -> dict[str, str]:
        """Without it the control group tells the job, and the answers tell the ranks."""
        try:
            return read_environment(folder, _NAMES)
        except PermissionError:
            self._refuse("DAC_READ_SEARCH")
            return {}

    def _refuse(self, capability: str) -> None:
        """Some processes are nobody's to read; what counts is what would help."""
        self.refusals |= {words for name, words in missing_words().items() if name == capability}

    def _version(self, folder: Path) -> tuple[int, ...] | None:
        """Version of the library that the process maps; None without one, or where unknown."""
        text = _read(folder / "maps", _MAX_MAPS_BYTES).decode(errors="replace")
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
            self._refuse("DAC_READ_SEARCH")
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
            text = _read(folder / "net" / name, _MAX_TABLE_BYTES).decode(errors="replace")
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
    for line in _read(folder / "net" / "fib_trie", _MAX_TABLE_BYTES).decode().splitlines():
        words = line.split()
        if words[:1] == ["|--"]:
            leaf = words[1]
        elif words[1:3] == ["host", "LOCAL"]:
            yield leaf
    try:
        text = _read(folder / "net" / "if_inet6", _MAX_TABLE_BYTES).decode()
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


def _job_id(environment: Mapping[str, str], group: str, procfs: Path, pid: int) -> str:
    """The id that ranks which attach would have; at last one by the process that started them."""
    slurm_job, _ = slurm_job_step(group)
    slurm_job = slurm_job or environment.get("SLURM_JOB_ID", "")
    array, task = (environment.get(f"SLURM_ARRAY_{name}_ID", "") for name in ("JOB", "TASK"))
    if slurm_job and array and task:
        slurm_job = f"{array}_{task}"
    run = environment.get("TORCHELASTIC_RUN_ID", "")
    address, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    is_local = address in {"", "localhost", "::1"} or address.startswith("127.")
    meeting = "" if is_local else ".".join(filter(None, (address, port)))
    stated = environment.get("LOCKSTEP_JOB_ID") or slurm_job or (run if run != "none" else "")
    if stated or meeting:
        return fit_job_id(stated or meeting)
    parent = _parent(procfs, pid)
    return fit_job_id(f"local-{parent}-{_start_ticks(procfs, parent) or 0}")


def _number(environment: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        text = environment.get(name, "")
        if text.isascii() and text.isdecimal() and len(text) <= 7:  # noqa: PLR2004  # of ranks
            return int(text)
    return None


def _read(path: Path, most: int) -> bytes:
    with path.open("rb") as file:
        return file.read(most)


def _stat_fields(procfs: Path, pid: int) -> list[str]:
    """Fields of ``/proc/PID/stat`` behind the name, from the state on; empty once it has ended."""
    try:
        text = _read(procfs / str(pid) / "stat", 4096).decode(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _start_ticks(procfs: Path, pid: int) -> int | None:
    fields = _stat_fields(procfs, pid)
    is_whole = len(fields) > _START_FIELD
    return int(fields[_START_FIELD]) if is_whole and fields[0] not in "ZX" else None


def _parent(procfs: Path, pid: int) -> int:
    fields = _stat_fields(procfs, pid)
    return int(fields[1]) if len(fields) > 1 else 0


def _inner_pid(folder: Path, pid: int) -> int:
    for line in _read(folder / "status", 16 << 10).decode(errors="replace").splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return pid
