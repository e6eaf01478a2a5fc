"""The middle of a report is pure: it reads no file, no clock and no network."""

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

from lockstep_records.events.event import Event, append_event
from lockstep_records.files.jobs import job_folder
from lockstep_reports.readers import ReadOptions, read_source
from lockstep_reports.report import make_document

from .synthetic_job import Slow, SyntheticJob

FIXTURES = Path(__file__).parents[1] / "fixtures"
SOURCES = {
    "operations": FIXTURES / "straggler-bytedance/trace-ST.parquet",
    "log": FIXTURES / "joblogs/gpu_oom_one_rank_others_time_out.log",
    "flight_recorder": FIXTURES / "flight-recorder-nvrx/lock_gil_1st",
    "kineto": FIXTURES / "kineto-hta",
    "worker_times": FIXTURES / "minibatch-alibaba/job_3_norm.csv",
}


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
