"""Spoiled trees of /sys and /proc, a kind of input of the agent's fuzz test."""

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from lockstep_agent.collector import AnyReading, Collector
from lockstep_agent.collectors.jobs.job_host import JobHost
from lockstep_agent.collectors.node.host import Host
from lockstep_agent.collectors.node.pcie import Affinity, Pcie
from lockstep_agent.collectors.node.storage import Storage
from lockstep_agent.collectors.ports.ethernet import Ethernet, Net
from lockstep_agent.collectors.ports.infiniband import Infiniband, InfinibandErrors
from lockstep_agent.collectors.ports.port_health import PortHealth
from lockstep_agent.jobs.job_snapshot import JobSnapshot
from lockstep_agent.jobs.page_store import PageStore
from lockstep_cli.gameday.fake_node import Tree

from ..fake_tree import fill_cgroups, fill_procfs

_PIDS = "lockstep_agent.collectors.jobs.job_host.running_pids"
_SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108  # a disk takes ten times as long
_MOST_MUTATIONS = 12
_FRAGMENTS = (
    b"",
    b"\n",
    b"0",
    b"-1",
    b"-9223372036854775808",
    b"18446744073709551615",
    b"99999999999999999999",
    b"9" * 5000,
    b"1e308",
    b"nan",
    b"inf",
    b"0x7f",
    b"N/A (no PMA)",
    b"4: ACTIVE",
    b"9: WHAT",
    b"400 Gb/sec (99X NDR)",
    b"999999 Gb/sec",
    b"\x00\x00\x00",
    b"\xff\xfe\xfa",
    "\u0663\u0664\u202e".encode(),  # digits that are none of the kernel's
    b'quote" back\\slash\nline',
    b"some avg10=x total=99999999999999999999",
    b"a b c d e f g h i j k l m n o p",
    b"TOTAL_ERR_COR 99999999999999999999",
    b"0::/../../etc",
    b"../../../etc/passwd",
)
_NAMES = ("port\nname", 'quo"te', "back\\slash", "\udcff", "x" * 200, "..a", "\u202eabc", "7", "-1")


class Nodes:
    """A small complete node, of which each case spoils a copy."""

    def __init__(self) -> None:
        self._folder: Path | None = None

    def copy(self, to: Path) -> None:
        """Links the node's files, which nobody may write into; symbolic links are copied."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="lockstep-fuzz-", dir=_SCRATCH))
            Tree(self._folder / "sys", gpus=1, infiniband=1, ethernet=1)
            fill_cgroups(self._folder / "sys")
            fill_procfs(self._folder / "proc")
        shutil.copytree(self._folder, to, symlinks=True, dirs_exist_ok=True, copy_function=os.link)

    def close(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder)
            self._folder = None


NODES = Nodes()


def _spoil(chance: random.Random, path: Path) -> None:
    """Changes one file, folder or link for the worse."""
    how = chance.randrange(9)
    if how == 0:
        _remove(path)
    elif how == 1:
        _remove(path)
        path.symlink_to(path.name)
    elif how == 2:  # one number for each kind of damage
        _remove(path)
        path.symlink_to(chance.choice(("..", "/", "/dev/null", "no/such", "../..")))
    elif how == 3:  # as above
        _remove(path)
        path.mkdir()
    elif how == 4:  # as above
        _rename(path, chance.choice(_NAMES))
    elif how == 5:  # as above
        _remove(path)
        os.mkfifo(path)
    elif path.is_file() and not path.is_symlink():
        content = _content(chance, path.read_bytes())
        path.unlink()  # the file itself is that of every case
        path.write_bytes(content)


def _content(chance: random.Random, content: bytes) -> bytes:
    how = chance.randrange(4)
    if how == 0:
        return chance.choice(_FRAGMENTS)
    if how == 1:
        return content[: chance.randrange(len(content) + 1)]
    if how == 2 and content:  # one number for each kind of damage
        at = chance.randrange(len(content))
        return content[:at] + chance.choice(_FRAGMENTS) + content[at + chance.randrange(4) :]
    return chance.randbytes(chance.randrange(64))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()


def _rename(path: Path, name: str) -> None:
    target = path.with_name(name)
    if os.path.lexists(path) and not os.path.lexists(target):
        path.rename(target)


def _spoiled(chance: random.Random, folder: Path) -> None:
    NODES.copy(folder)
    paths = sorted(folder.rglob("*"))
    for _ in range(chance.randint(1, _MOST_MUTATIONS)):
        _spoil_inside(chance, folder, chance.choice(paths))


def _spoil_inside(chance: random.Random, folder: Path, path: Path) -> None:
    """Spoils what still exists, and never what a link leads to outside."""
    inside = path.parent.is_dir() and path.parent.resolve().is_relative_to(folder.resolve())
    if inside and os.path.lexists(path):
        _spoil(chance, path)


def trees(chance: random.Random, folder: Path) -> Iterator[AnyReading]:
    """Spoiled trees of /sys and /proc, spoiled once more between two runs of each collector."""
    _spoiled(chance, folder)
    sysfs, procfs = str(folder / "sys"), str(folder / "proc")
    collectors: tuple[Collector, ...] = (
        Infiniband(sysfs),
        InfinibandErrors(sysfs, detail=True),
        PortHealth(sysfs),
        Net(sysfs),
        Ethernet(sysfs),
        Pcie(sysfs, detail=True),
        Affinity(sysfs),
        Host(procfs),
        JobHost(sysfs, procfs, PageStore(folder, folder / "proc")),
        Storage(sysfs, procfs),
    )
    (folder / "jobs" / "job").mkdir(parents=True, exist_ok=True)
    with patch(_PIDS, _own_pids):
        for collector in collectors:
            yield from _servable_readings(collector)
    paths = sorted(folder.rglob("*"))
    _spoil_inside(chance, folder, chance.choice(paths or [folder]))
    with patch(_PIDS, _own_pids):
        for collector in collectors:
            yield from _servable_readings(collector)


def _servable_readings(collector: Collector) -> Iterator[AnyReading]:
    """Readings up to a label that no kernel writes; the guard counts such a run as failed."""
    try:
        yield from collector.collect()
    except ValueError as error:
        if "cannot be served" not in str(error):
            raise


def _own_pids(_job: JobSnapshot) -> list[int]:
    return [os.getpid()]
