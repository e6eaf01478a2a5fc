"""The middle of a report is pure: it reads no file, no clock and no network, and no reader."""

import ast
import builtins
import gc
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lockstep_reports
from lockstep_records.events.event import Event, append_event
from lockstep_records.files.jobs import job_folder
from lockstep_reports.readers import ReadOptions, read_source
from lockstep_reports.report import make_document

from .synthetic_job import Slow, SyntheticJob

PACKAGE = Path(lockstep_reports.__file__).parent
FIXTURES = Path(__file__).parents[1] / "fixtures"
PURE = ("analysis", "document", "recording", "search", "verdict", "whatif")
IMPURE = {"io", "os", "socket", "subprocess", "tempfile", "time", "httpx", "click", "rich"}
# Functions of records that read files; what else is there are values and their words.
READING = {"attempts", "compressed", "foreign_files", "jobs", "last_output", "liveness", "switches"}
SOURCES = {
    "operations": FIXTURES / "straggler-bytedance/trace-ST.parquet",
    "log": FIXTURES / "joblogs/gpu_oom_one_rank_others_time_out.log",
    "flight_recorder": FIXTURES / "flight-recorder-nvrx/lock_gil_1st",
    "kineto": FIXTURES / "kineto-hta",
    "worker_times": FIXTURES / "minibatch-alibaba/job_3_norm.csv",
}


def imported(path: Path) -> set[str]:
    """Dotted names that a module imports at its top, those for type checkers left out."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("folder", PURE)
def test_a_pure_folder_imports_neither_readers_nor_what_reads_files_or_clocks(folder: str) -> None:
    for path in (PACKAGE / folder).glob("*.py"):
        for name in imported(path):
            assert name.partition(".")[0] not in IMPURE, f"{path.name} imports {name}"
            assert not name.startswith("lockstep_reports.readers"), f"{path.name} imports {name}"
            assert not name.startswith("pathlib.Path"), f"{path.name} imports {name}"
            assert name.split(".")[:1] != ["lockstep_records"] or name.split(".")[1] not in READING


@pytest.fixture(name="sealed")
def _sealed(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Nothing may be opened, listed or asked for the time."""

    mine = threading.current_thread()

    def refuse_here(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            # Threads that other tests left behind go on.
            if threading.current_thread() is mine:
                raise AssertionError("the middle of a report reads a file, a clock or a network")
            return original(*arguments, **options)

        return call

    def seal() -> None:
        # What other tests left is ended before or after, and says so with a clock.
        gc.collect()
        gc.disable()
        for module, names in (
            (builtins, ("open",)),
            (os, ("open", "stat", "listdir", "scandir")),
            (time, ("time", "monotonic", "monotonic_ns", "time_ns")),
            (socket, ("socket",)),
        ):
            for name in names:
                monkeypatch.setattr(module, name, refuse_here(getattr(module, name)))

    monkeypatch.seal = seal  # type: ignore[attr-defined]  # called when the recording is read
    yield monkeypatch
    gc.enable()


@pytest.mark.parametrize("kind", [*SOURCES, "pages"])
def test_a_recording_once_read_is_analysed_without_files_and_clocks(
    kind: str, sealed: Any, page_root: Path
) -> None:
    source = SOURCES.get(kind)
    if source is None:
        source = SyntheticJob(job_id="p", slow=(Slow(rank=2),)).write(page_root)
        fields = {"ranks": [], "missing": [1], "begin": 1_790_000_021.0}
        hang = Event(kind="hang", job_id="p", attempt=0, fields=fields, time=1_790_000_030.0)
        append_event(job_folder(page_root, "p"), hang)
    recording = read_source(str(source), ReadOptions())
    # What is imported late is imported now.
    expected = make_document(recording)
    with sealed.context():
        sealed.seal()
        document = make_document(recording)
    sealed.undo()
    assert document.headline == expected.headline
    assert document.published == expected.published
