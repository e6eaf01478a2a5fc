"""One agent, and ranks in PID namespaces of their own, before and after kill -9."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from servers import wait_until

from lockstep_agent.options import Options
from lockstep_agent.runtime.collector_runtime import CollectorRuntime
from lockstep_agent.runtime.sampler import Sampler
from lockstep_catalogue import training
from lockstep_catalogue.gpu import GPU_OWNER_INFO
from lockstep_records.files.jobs import page_path
from lockstep_records.page.lock import holder_of
from lockstep_records.page.reader import read_page

_UNSHARE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
# The shell is the first process of the namespace: with a rank in its place all would end with it.
_SHELL = ("sh", "-c", '"$0" "$@"; sleep 600')
_UUID = "GPU-00000000-0000-0000-0000-{:012d}"
_RANK = """
import os, sys, time
from pathlib import Path
from lockstep_records.page.writer import PageWriter, RankIdentity
path, rank = Path(sys.argv[1]), int(sys.argv[2])
identity = RankIdentity(job_id="job-a", rank=rank, world_size=2, gpu_uuid=sys.argv[3])
writer = PageWriter(path, identity, rows=4)
if os.fork() == 0:
    time.sleep(600)
path.with_suffix(".ready").touch()
time.sleep(600)
"""


def may_unshare() -> bool:
    tool = shutil.which("unshare")
    return tool is not None and subprocess.run([*_UNSHARE, "true"], check=False).returncode == 0


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(word) for word in text.split()]


@contextlib.contextmanager
def ranks_in_namespaces(root: Path) -> Iterator[list[int]]:
    """Pids, as this machine counts them, of two ranks, each with a child and in its namespace."""
    paths = [page_path(root, "job-a", 0, rank) for rank in (0, 1)]
    paths[0].parent.mkdir(parents=True)
    with contextlib.ExitStack() as open_:
        outer = []
        for rank, path in enumerate(paths):
            program = (sys.executable, "-c", _RANK, str(path), str(rank), _UUID.format(rank))
            process = subprocess.Popen([*_UNSHARE, *_SHELL, *program])
            open_.callback(process.wait)
            open_.callback(process.kill)  # its child, the shell, goes with it, and so all others
            outer.append(process.pid)
        wait_until(lambda: all(path.with_suffix(".ready").exists() for path in paths))
        yield [children_of(children_of(pid)[0])[0] for pid in outer]


def states(sampler: Sampler) -> Counter[str]:
    return Counter(
        {
            dict(zip(reading.metric.label_names, reading.labels, strict=True))["state"]: int(
                reading.value
            )
            for reading in sampler.sample().readings
            if reading.metric is training.RANKS and isinstance(reading.value, int) and reading.value
        }
    )


def owners(sampler: Sampler) -> dict[str, tuple[str, str]]:
    """Job and rank by GPU."""
    labels = [
        dict(zip(reading.metric.label_names, reading.labels, strict=True))
        for reading in sampler.sample().readings
        if reading.metric is GPU_OWNER_INFO
    ]
    return {each["gpu"]: (each["job_id"], each["rank"]) for each in labels if each["job_id"]}


@pytest.mark.skipif(not may_unshare(), reason="PID namespaces take privileges")
def test_states_and_owners_of_ranks_in_two_namespaces_are_right_before_and_after_kill_9(
    root: Path, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Owners are read again every ten seconds, which is too long to wait for in a test.
    monkeypatch.setattr("lockstep_agent.collectors.gpu.allocation._REFRESH_SECONDS", 0.0)
    sampler = Sampler(CollectorRuntime(replace(options, procfs=Path("/proc"))), options.tick)
    with ranks_in_namespaces(root) as pids:
        pages = [page_path(root, "job-a", 0, rank) for rank in (0, 1)]
        for path, pid in zip(pages, pids, strict=True):
            holder = holder_of(path)
            assert holder is not None
            assert holder.pid == pid
            # Its own number is low: on this machine that of another process.
            assert read_page(path).identity["pid"] < min(pids)
        assert states(sampler) == {"init": 2}
        wait_until(lambda: owners(sampler) == {"0": ("job-a", "0"), "1": ("job-a", "1")})
        [child] = children_of(pids[1])
        os.kill(pids[1], signal.SIGKILL)
        wait_until(lambda: states(sampler) == {"init": 1, "gone": 1})
        wait_until(lambda: owners(sampler) == {"0": ("job-a", "0")})
        os.kill(child, 0)  # it still runs, with the page in its memory
        assert str(pages[1]) in Path(f"/proc/{child}/maps").read_text(encoding="utf-8")
