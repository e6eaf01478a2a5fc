"""The readers: one module per source, each of which gives the same frozen values.

A reader is a module with two functions and one line in ``READERS``::

    def recognises(path: Path) -> bool   # by content, cheaply; may raise for what it cannot open
    def read(path: Path, options: ReadOptions) -> Recording
"""

import time
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from lockstep_records.files.jobs import find_job
from lockstep_records.page.reader import read_page
from lockstep_reports.readers.engine import Engine
from lockstep_reports.recording.recording import LogRecording, Recording, Window

ADDRESSES = ("http://", "https://")
"""How a source that is a Prometheus begins."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadOptions:
    """What the user may add to the path or address of a source.

    Attributes:
        attempt: attempt of a job with pages; None for the newest.
        meta: layout file of an operation trace; None to look for one next to the trace.
        job_id: job of a Prometheus, or a communicator of it; None where there is one job only.
        window: part of the recording to read.
        only_window: whether nothing is needed of what lies outside.
        now_seconds: wall clock of the moment of reading.
        signs_from: address of a Prometheus that knows the nodes; None asks none.
        engine: where an archive is read; None for threads of this process.
    """

    attempt: int | None = None
    meta: Path | None = None
    job_id: str | None = None
    window: Window = field(default_factory=Window)
    only_window: bool = False
    now_seconds: float = field(default_factory=time.time)
    signs_from: str | None = None
    engine: Engine | None = None


class ReaderModule(Protocol):
    """What a reader's module offers."""

    def recognises(self, path: Path) -> bool:
        """Whether the content is of this kind; where it raises ValueError or OSError it is not."""

    def read(self, path: Path, options: ReadOptions) -> Recording | LogRecording:
        """The recording; raises ValueError or OSError with one sentence for the user."""


# The modules of this folder, tried in this order; the first that recognises the content reads it.
# Logs come last: any text could be one.
READERS = (
    "jobs",
    "ras",
    "traces",
    "inspector",
    "inspector_means",
    "flight_recorder",
    "kineto",
    "step_series",
    "worker_times",
    "kernel_logs",
    "logs",
)


def load_reader(name: str) -> ReaderModule:
    """A reader's module, imported only when its turn comes."""
    return cast("ReaderModule", import_module(f"{__name__}.{name}"))


def find_reader(path: Path) -> ReaderModule | None:
    """The first reader that recognises the content of a path; None when none does."""
    for reader in map(load_reader, READERS):
        # What cannot be opened is not of that kind.
        with suppress(OSError, ValueError):
            if reader.recognises(path):
                return reader
    return None


def read_source(source: str, options: ReadOptions) -> Recording | LogRecording:
    """The recording behind a path, a job id or the URL of a Prometheus, with its nodes' series.

    A path is read by the first reader that recognises its content.

    Raises:
        ValueError: nothing of that name exists, or it cannot be read; the text says why.
        OSError: a file cannot be read.
    """
    recording = _read_steps(source, options)
    if options.signs_from is None or isinstance(recording, LogRecording):
        return recording
    # httpx takes longer to import than a small report takes to write.
    from lockstep_reports.readers.node_series import add_node_series  # noqa: PLC0415  # see above

    return add_node_series(recording, options.signs_from)


def _read_steps(source: str, options: ReadOptions) -> Recording | LogRecording:
    if source.startswith(ADDRESSES):
        read_url = import_module(f"{__name__}.prometheus").read_url
        return cast("Recording", read_url(source, options))
    if not source:
        raise ValueError("SOURCE is empty; give a job, or leave it out for the newest one")
    path = Path(source)
    # Neither pyarrow nor fsspec are loaded for a job's own folder.
    if "://" in source or (path / "nodes").is_dir():
        archive = import_module(f"{__name__}.archive")
        if "://" in source:
            return cast("Recording", archive.read_url(source, options))
        return cast("Recording", archive.read(path.resolve(), options))
    if path.exists():
        reader = find_reader(path.resolve())
        if reader is not None:
            return reader.read(path.resolve(), options)
        if path.suffix == ".page":
            read_page(path)  # its own error says more: the version, or what is damaged
            raise ValueError(f"{source} is the page of one rank; give the folder of its job")
        if path.is_file():
            kind = "of no kind that a report can be made from" if path.stat().st_size else "empty"
            raise ValueError(f"{source} is {kind}; give a job, trace or log")
    return load_reader("jobs").read(find_job(source).resolve(), options)
